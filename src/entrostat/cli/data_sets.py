"""Data sets by name, as `entrostat tasks` lists and explains them."""

from __future__ import annotations

from typing import Any

from .._text import say
from ..tasks.sets import KINDS, SETS, TEMPLATES, DataSet
from ..tasks.sources import at_hand, places
from .terminal import say_entry, wrapped


def list_sets() -> None:
    """Every set: what it is, its licence, and whether it is at hand."""
    say("Data sets by name (options: `entrostat tasks NAME`; your own copy: --task.path FILE):\n")
    for one in SETS.values():
        use = "" if one.trains else "to evaluate on; "
        place = at_hand(one) or f"not at hand: download {one.hub}"
        facts = f"[{use}{place}; licence: {one.licence}]"
        say_entry(one.name, f"{one.summary} {facts}")
    say("")
    for one in KINDS.values():
        say_entry(f"{one.name}:FILE", _of_file(one))
    say("")


def explain_set(one: DataSet) -> None:
    """One set, or one kind of file: where it comes from, its columns, prompt and grader."""
    columns = ", ".join(f"{name} = {column}" for name, column in one.fields.items())
    facts = {"grader": one.grader, "columns": columns, "template": TEMPLATES[one.template]}
    if one.hub:
        part = f", configuration {one.config}" if one.config else ""
        splits = ", ".join(
            ours if ours == hubs else f"{ours} (called {hubs} there)"
            for ours, hubs in one.splits.items()
        )
        facts = {
            "from": f"{one.hub} on huggingface.co/datasets{part}",
            "splits": splits + ("" if one.trains else "; to evaluate on: train_on_test lifts that"),
            "at hand": at_hand(one) or "no",
            "looked for": " and ".join(f"{place}.jsonl or .parquet" for place in places(one)),
            "licence": one.licence,
            **facts,
        }
        if one.without:
            facts["without"] = f"the problems of {', '.join(one.without)}"
    say(wrapped(one.summary if one.hub else _of_file(one), 0) + "\n")
    for key, text in facts.items():
        for line in text.splitlines() or [""]:
            say(f"  {key + ':' * bool(key):<12}{wrapped(line, 14).lstrip()}".rstrip())
            key = ""
    say("")
    if one.note:
        say(wrapped(one.note, 0) + "\n")


def own_options(one: DataSet) -> dict[str, Any]:
    """The values of a set's own, for those of its options that are the set's unless given."""
    return {
        "fields": dict(one.fields), "template": one.template, "grader": one.grader,
        "grader_options": {}, "without": list(one.without), "test": one.held_out,
        "max_new_tokens": one.max_new_tokens,
    }  # fmt: skip


def _of_file(one: DataSet) -> str:
    columns = ", ".join(one.fields.values())
    return f"a file of your own with {one.summary}; columns {columns}, or --task.fields.NAME COLUMN"
