"""Hand-written run directories, and pages taken apart."""

import base64
import hashlib
import html.parser
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import torch

from entrostat.logs.rollouts import Rollouts

EVIL = "<script>alert(1)</script>"
VOID = {"meta", "img", "br", "link", "input", "hr", "base"}


class Page(html.parser.HTMLParser):
    """A page, taken apart; fails where an end tag does not match the open one."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.style = ""
        self.scripts: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.style += data
        elif self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        else:
            self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    def words(self):
        return " ".join(self.text.split())

    def data(self, name):
        """The JSON that a part of the page is made of; None where it has none."""
        places = [i for i, tag in enumerate(self.all("script")) if tag.get("id") == name]
        return json.loads(self.scripts[places[0]]) if places else None

    def rollouts(self):
        """What the token view is made of."""
        return self.data("token-data")

    def svgs(self):
        prefix = "data:image/svg+xml;base64,"
        for image in self.all("img"):
            assert image["src"].startswith(prefix)
            yield base64.b64decode(image["src"].removeprefix(prefix)).decode("utf-8")


def addresses(page: Page) -> list[str]:
    """Where its links lead, but for those to itself."""
    links = [attrs["href"] or "" for attrs in page.all("a")]
    return [link for link in links if not link.startswith("#")]


def check_self_contained(page: Page) -> None:
    forbidden = {"link", "iframe", "object", "embed", "base", "form"}
    assert forbidden.isdisjoint(tag for tag, _ in page.tags)
    check_scripts(page)
    assert "url(" not in page.style
    assert "@import" not in page.style
    for tag, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on")]
        assert tag == "img" or "src" not in attrs
        assert not re.match(r"[a-z]+:|//", attrs.get("href") or "")
    for image in page.all("img"):
        assert image["src"].startswith("data:image/svg+xml;base64,")
    for svg in page.svgs():
        names = {element.tag.split("}")[-1] for element in ElementTree.fromstring(svg).iter()}
        assert names.isdisjoint({"script", "foreignObject", "image", "a"})


def check_scripts(page: Page) -> None:
    """Data, and one script, which the policy names by its hash."""
    (policy,) = [
        tag["content"] for tag in page.all("meta")
        if tag.get("http-equiv") == "Content-Security-Policy"
    ]  # fmt: skip
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert page.source.lower().count("<script") == len(page.scripts)
    kinds = [tag.get("type") for tag in page.all("script")]
    assert kinds == ["application/json"] * (len(kinds) - 1) + [None]
    *data, code = page.scripts
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert not set("".join(data)) & set("<>&\u2028\u2029\u202e\u2066")
    for word in (
        "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(",
        "<!--", "</script", "fetch(", "XMLHttpRequest", "import(",
    ):  # fmt: skip
        assert word not in code


def make_run(path: Path, *, methods='["grpo"]', lines=None, evaluation=None, final=True) -> Path:
    path.mkdir(parents=True)
    if lines is None:
        lines = [
            {"iteration": 1, "entropy/exact": 0.8, "entropy/nll": 0.79, "reward/mean": 0.25,
             "control/zeta": 0.001, "control/target": 0.7, "clip/low": 0.0, "clip/high": 0.01,
             "grad/norm": 1.0, "time/iteration": 2.5},
            {"iteration": 2, "entropy/exact": 0.6, "reward/mean": 0.5, "control/zeta": 0.002},
            {"iteration": 3, "entropy/exact": 0.5, "reward/mean": 0.75, "control/zeta": 0.1,
             "control/target": 0.7, "time/iteration": 1.5},
        ]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if evaluation is None:
        evaluation = [
            eval_line(0, "test", 0.25, 0.5, 1.5),
            eval_line(0, "ood", 0.0, 0.125, 0.5),
            eval_line(2, "test", 0.375, 0.625, 2.0),
            eval_line(3, "test", 0.5, 0.75, 1.25),
            eval_line(3, "ood", 0.0625, 0.1875, 0.75),
        ]
    if evaluation:
        text = "".join(json.dumps(line) + "\n" for line in evaluation)
        (path / "evaluation.jsonl").write_text(text)
    (path / "config.toml").write_text(
        f'method = {methods}\nmodel = "tiny"\nseed = 7\niterations = 3\n'
        '[task]\nname = "target_sum"\n[sampling]\nprompts = 32\n'
    )
    (path / "environment.json").write_text('{"python": "3.11", "processors": 2}')
    if final:
        (path / "final").mkdir()
    return path


def eval_line(iteration, split, avg, passed, distinct):
    return {"iteration": iteration, "split": split, "prompts": 64, "k": 8, "avg@k": avg,
            "pass@k": passed, "distinct": distinct, "entropy": 0.9}  # fmt: skip


def make_rollouts(prompts, completions, rewards, group=None, iteration=3, pieces=None):
    """Rollouts of three tokens each: "a", "b" and the end."""
    B = len(prompts)
    n = 3 * B
    return Rollouts(
        iteration, prompts, completions, torch.tensor(rewards),
        torch.tensor(group if group is not None else list(range(B)), dtype=torch.int32),
        torch.ones(B, dtype=torch.bool), torch.ones(B, dtype=torch.bool),
        torch.arange(0, n + 1, 3), torch.tensor([1, 2, 0] * B, dtype=torch.int32),
        torch.tensor([-0.5, -1.5, -0.25] * B), torch.zeros(n),
        torch.tensor([0.5, 2.0, 0.0] * B), torch.tensor([1.0, -1.0, 0.0] * B),
        pieces or {0: "<eos>", 1: "a", 2: "b"},
    )  # fmt: skip
