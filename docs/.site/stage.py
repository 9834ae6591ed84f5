"""Puts together what the documentation site is built from: `make docs`.

    python docs/.site/stage.py build/docs

writes the pages of docs/, README and its like, a page for each part of the API and the generator's
settings into that folder. Pages keep the links that work in the repository; where a file lies
elsewhere on the site, or is no page, they are turned here.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# file of the repository -> page
BORROWED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "recipes/papers/README.md": "recipes/papers.md",
}
# page -> what it is, and the modules or names that it shows
API = {
    "objective": ("Objectives", ["entrostat.core.objective.make_objective",
                                 "entrostat.core.objective.Objective",
                                 "entrostat.core.loss.LossOutput",
                                 "entrostat.core.advantages.advantages"]),
    "batch": ("Batches and terms", ["entrostat.core.batch.TokenBatch", "entrostat.core.batch.Terms",
                                    "entrostat.core.distributed.GlobalBatch"]),
    "method": ("Methods", ["entrostat.method.base.Method", "entrostat.method.registry.register",
                           "entrostat.method.registry.methods",
                           "entrostat.method.registry.MethodInfo"]),
    "testing": ("The contract of a method", ["entrostat.testing.check_method",
                                             "entrostat.testing.subject.Allowed",
                                             "entrostat.testing.subject.Added",
                                             "entrostat.testing.findings.Rule"]),
    "tasks": ("Tasks and graders", ["entrostat.tasks.make_task", "entrostat.tasks.base.Task",
                                    "entrostat.tasks.base.Example",
                                    "entrostat.grading.call.grade"]),
    "stats": ("Token statistics", ["entrostat.core.stats.token_stats",
                                   "entrostat.core.stats.token_stats_from_logits",
                                   "entrostat.core.stats.TokenStats"]),
    "dynamics": ("Entropy dynamics", ["entrostat.dynamics.estimators",
                                      "entrostat.dynamics.derivatives"]),
    "law": ("The law R = -a exp(H) + b", ["entrostat.law.fitting", "entrostat.law.early"]),
    "metrics": ("Metrics of evaluation", ["entrostat.evaluation.metrics"]),
    "rollouts": ("Rollouts of a run", ["entrostat.logs.rollouts"]),
    "train": ("Training", ["entrostat.trainers.lab.loop.train",
                           "entrostat.config.settings.TrainConfig"]),
    "trl": ("In TRL", ["entrostat.trainers.trl.trainer.EntropyGRPOTrainer",
                       "entrostat.trainers.trl.equal.from_grpo_config"]),
}  # fmt: skip


def stage(folder: Path) -> None:
    """Write pages, pictures and settings."""
    pages = folder / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns(".site"))
    own = sorted(path.relative_to(pages).as_posix() for path in pages.rglob("*.md"))
    for page in own:
        text = (pages / page).read_text(encoding="utf-8")
        (pages / page).write_text(turned(text, f"docs/{page}", page), encoding="utf-8")
    for source, page in BORROWED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        write(pages / page, turned(text, source, page))
    for page, (title, names) in API.items():
        write(pages / f"api/{page}.md", "\n\n".join([f"# {title}", *(f"::: {x}" for x in names)]))
    settings = yaml.safe_load((HERE / "zensical.yml").read_text(encoding="utf-8"))
    settings["nav"] = navigation(settings["nav"], own)
    python = settings["plugins"][-1]["mkdocstrings"]["handlers"]["python"]
    python["paths"] = [str(ROOT / "src")]
    python["options"]["extensions"] = [str(HERE / "doctests.py")]
    write(folder / "mkdocs.yml", yaml.safe_dump(settings, sort_keys=False))


def write(path: Path, text: str) -> None:
    """A file, in a folder that may have to be made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def navigation(nav: list, pages: list[str]) -> list:
    """The navigation with the API's pages and the study's in their places."""
    shelves = {
        "API": [f"api/{page}.md" for page in API],
        "EXPERIMENTS": [page for page in pages if page.startswith("study/")],
    }

    def filled(entry: Any) -> Any:
        if isinstance(entry, list):
            return [filled(each) for each in entry]
        if isinstance(entry, dict):
            return {title: filled(each) for title, each in entry.items()}
        return shelves.get(entry, entry)

    return filled(nav)


def turned(text: str, source: str, page: str) -> str:
    """The text with its links from one place in the repository to those from one on the site.

    A link to a file that is no page becomes the file's name. A link whose words are a page's file
    name gets the page's title.
    """

    def turn(match: re.Match[str]) -> str:
        words, link = match[1], match[2]
        target, hash_, anchor = link.partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if (ROOT / file).is_dir():
            file += "/README.md"
        if file not in BORROWED and not file.startswith("docs/"):
            return words[words.index("[") + 1 : -1]
        if words.endswith(".md]"):
            title = (ROOT / file).read_text(encoding="utf-8").partition("\n")[0]
            words = f"[{title.removeprefix('# ')}]"
        there = BORROWED.get(file, file.removeprefix("docs/"))
        return f"{words}({posixpath.relpath(there, posixpath.dirname(page) or '.')}{hash_}{anchor})"

    return re.sub(r"(!?\[[^][]*\])\(([^)\s]+)\)", turn, text)


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
