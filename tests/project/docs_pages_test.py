"""The pages: links lead somewhere, Python runs, TOML parses, console lines call what there is."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from entrostat.cli import main
from entrostat.method import METHODS
from entrostat.testing import RULES, contract_data
from paths import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# what a block says -> why it is compiled and not run
NOT_RUN = {
    "es.load_rollouts(": "reads the reader's run; logs_test and lab_test load ours",
    "EntropyGRPOTrainer(": "trains a model in TRL: trl_test",
    "use_float32_outputs(": "the same",
    "functional(model": "a model's derivatives: dynamics_test",
    "db.execute(": "a program inside a sandboxed world: agents_test",
    "torch.load(": "another program's dump: importers_test",
    "sandbox.run(": "starts sandboxes: sandbox_test",
    "import from_grpo_config": "needs the extra trl: trl_test",
}


class Block(NamedTuple):
    page: str
    line: int
    kind: str
    code: str


def blocks(*kinds: str) -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page.name, line, match[1], match[2]))
    return [block for block in found if block.kind in kinds]


def label(block: Block) -> str:
    return f"{block.page}:{block.line}"


def written(comment: str) -> Any:
    """The value that a comment gives, before a colon if there is one; ... where it is words."""
    for text in (comment, comment.partition(": ")[0]):
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            continue
    return ...


@pytest.mark.parametrize("block", blocks("python"), ids=label)
def test_python(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """What a block shows beside an expression is what the expression gives; its tests pass."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_module.py").write_text("def grade(response, answer): return 0.5\n")
    for folder in ("recipes", "examples"):  # the pages speak from the repository's root
        (tmp_path / folder).symlink_to(ROOT / folder)
    tree = ast.parse(block.code)
    if any(words in block.code for words in NOT_RUN):
        return
    data = contract_data()
    names: dict[str, Any] = data | {"mask": data["mask"].long(), "__name__": "a_page"}  # as TRL's
    names["logp"].requires_grad_()
    before, lines = dict(METHODS), block.code.splitlines()
    try:
        for node in tree.body:
            place = f"{block.page}, line {block.line + node.lineno}"
            if not isinstance(node, ast.Expr):
                run(ast.Module([node], []), place, names)
                continue
            value = eval(
                compile(ast.Expression(node.value), place, "eval", dont_inherit=True), names
            )
            comment = lines[node.end_lineno - 1][node.end_col_offset :].partition("# ")[2]
            said = capsys.readouterr().out.strip()
            if said and comment:
                assert said == comment
            elif (expected := written(comment)) is not ...:
                assert value == expected, place
        for name, test in list(names.items()):
            if name.startswith("test_"):
                test()
    finally:
        METHODS.clear()
        METHODS.update(before)


def run(module: ast.Module, place: str, names: dict[str, Any]) -> None:
    exec(compile(module, place, "exec", dont_inherit=True), names)


def test_what_is_not_run_is_there() -> None:
    code = "\n".join(block.code for block in blocks("python"))
    assert [words for words in NOT_RUN if words not in code] == []


@pytest.mark.parametrize("block", blocks("toml"), ids=label)
def test_toml(block: Block) -> None:
    assert tomllib.loads(block.code)


def test_console_lines_call_verbs_and_targets_that_there_are(
    capsys: pytest.CaptureFixture,
) -> None:
    assert main(["no-such-verb"]) == 2
    known = capsys.readouterr().err.partition("There are: ")[2].strip(".\n").split(", ")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    seen = set()
    for block in blocks("", "bash"):
        for verb in re.findall(r"^(?:\S*/)?entrostat ([a-z][\w-]*)", block.code, re.MULTILINE):
            assert verb in known, label(block)
            seen.add(verb)
        for target in re.findall(r"^make ([\w-]+)", block.code, re.MULTILINE):
            rule = rf"^(?:[\w-]+ )*{target}(?: [\w-]+)*:"
            assert re.search(rule, makefile, re.MULTILINE), f"{label(block)}: make {target}"
            seen.add(target)
    assert {"train", "report", "test"} <= seen


# ---------------------------------------------------------------------------- links


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub and the documentation site make them."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), target


# ---------------------------------------------------------------------------- the site

SITE = ROOT / "docs" / ".site"


@pytest.fixture(scope="module")
def stage() -> Any:
    spec = importlib.util.spec_from_file_location("stage", SITE / "stage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_shows_pages_and_names_that_there_are(stage: Any) -> None:
    named = re.findall(r"^ +- ([\w/]+\.md)$", (SITE / "zensical.yml").read_text(), re.MULTILINE)
    borrowed = {page: source for source, page in stage.BORROWED.items()}
    for page in named:
        assert (ROOT / borrowed.get(page, f"docs/{page}")).is_file(), page
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith("study/")} == {*named} - borrowed.keys()
    for name in [name for _, names in stage.API.values() for name in names]:
        assert pkgutil.resolve_name(name).__doc__, name


@pytest.mark.parametrize(
    ("text", "source", "page", "turned"),
    [
        ("[a](docs/lab.md#resume)", "README.md", "index.md", "[a](lab.md#resume)"),
        ("[a](../recipes/papers/README.md)", "docs/lab.md", "lab.md", "[a](recipes/papers.md)"),
        ("[a](recipes/papers)", "README.md", "index.md", "[a](recipes/papers.md)"),
        ("[a](../lab.md)", "docs/hosts/trl.md", "hosts/trl.md", "[a](../lab.md)"),
        ("[a](../tests/x.py), b", "docs/lab.md", "lab.md", "a, b"),
        ("[lab.md](lab.md)", "docs/demo.md", "demo.md", "[Train with the lab](lab.md)"),
        ("![a](docs/demo.png)", "README.md", "index.md", "![a](demo.png)"),
        ("[a](https://x.org) [b](#c)", "README.md", "index.md", "[a](https://x.org) [b](#c)"),
    ],
)
def test_links_are_turned(stage: Any, text: str, source: str, page: str, turned: str) -> None:
    assert stage.turned(text, source, page) == turned


# ---------------------------------------------------------------------------- docs/authors.md


def test_the_table_of_rules_is_theirs() -> None:
    page = (ROOT / "docs" / "authors.md").read_text(encoding="utf-8")
    rows = [f"| `{rule.name}` | {rule.says} |" for rule in RULES.values()]
    table = "\n".join(["| rule | says |", "| --- | --- |", *rows])
    between = page.partition("<!-- rules -->\n")[2].partition("\n<!-- /rules -->")[0]
    assert between == table, f"docs/authors.md should have:\n{table}"


def test_the_page_s_failure_is_what_is_said() -> None:
    page = (ROOT / "docs" / "authors.md").read_text(encoding="utf-8")
    code = next(block.code for block in blocks("python") if "check_method(Damped)" in block.code)
    names: dict[str, Any] = {"__name__": "a_page"}
    tree = ast.parse(
        code.replace("self.strength * p0)", "self.strength * p0) * (1 + batch.old_logp.mean())")
    )
    run(tree, "authors.md", names)
    with pytest.raises(AssertionError) as caught:
        names["check_method"](names["Damped"])
    said = page.partition("AssertionError: ")[2].partition("\n```")[0]
    assert " ".join(said.split()) == str(caught.value)
