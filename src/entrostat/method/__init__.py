"""Every method by name. One paper, one file; this module holds the one dict name -> class.

To add one: a file with a frozen dataclass that derives from `Method`, a line in `METHODS`, a test
with hand-computed values, a line in CHANGELOG.md. Recipes, the command line and the hosts find it
here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._names import unknown
from ..advantage import ESTIMATORS
from .base import HOSTS, Method
from .repo import RepoR
from .surrogates import Gspo, Ppo, Reinforce

METHODS: dict[str, type[Method]] = {
    "reinforce": Reinforce,
    "ppo": Ppo,
    "gspo": Gspo,
    "repo_r": RepoR,
}


@dataclass(frozen=True)
class Recipe:
    """A named combination: an advantage estimator and methods with their parameters."""

    summary: str
    paper: str
    advantage: str
    chain: tuple[tuple[str, Mapping[str, Any]], ...]


def _clip(summary: str, paper: str, low: float | None, high: float | None, advantage: str = "grpo"):
    return Recipe(summary, paper, advantage, (("ppo", {"low": low, "high": high}),))


RECIPES: dict[str, Recipe] = {
    "grpo": _clip("GRPO: normalised group advantage, symmetric clip (.2, .2).", "REPO 4", 0.2, 0.2),
    "loop": _clip("LOOP: leave-one-out advantage, clip (.2, .2).", "REPO 4", 0.2, 0.2, "rloo"),
    "loop_tight": _clip("LOOP with REPO App. B's clip (.1, .1).", "REPO App. B", 0.1, 0.1, "rloo"),
    "dapo": _clip("DAPO as REPO runs it: rloo, clip (.2, .28).", "REPO 4", 0.2, 0.28, "rloo"),
    "clip_higher": _clip("GRPO with the clip raised above: (.2, .28).", "PAR 6", 0.2, 0.28),
    "clip_lower": _clip("GRPO with the clip widened below: (.28, .2).", "PAR 6", 0.28, 0.2),
    "clip_tighter": _clip("GRPO with the clip tightened below: (.12, .2).", "PAR 6", 0.12, 0.2),
    "clip_free": _clip("GRPO's ratio without any clip.", "PAR 6", None, None),
    "extreme": _clip("GRPO with an extremely wide clip: (.99, 5).", "PAR 6", 0.99, 5.0),
    "gspo_repo_r": Recipe(
        "REPO-R over GSPO's sequence ratio.", "REPO 4", "rloo", (("gspo", {}), ("repo_r", {}))
    ),
}


@dataclass(frozen=True)
class MethodInfo:
    """What a user may ask of a name that `make_objective` takes.

    Attributes:
        name: as in `make_objective` and `--method`.
        kind: "surrogate", "intervention" or "recipe".
        summary: one line.
        paper: short name of the source, with its section.
        needs: `TokenBatch` fields beyond logp, old_logp, mask and advantages.
        hosts: where it runs.
        parameters: name -> default.
        doc: the full docstring: equation, parameters, deviations.
    """

    name: str
    kind: str
    summary: str
    paper: str
    needs: tuple[str, ...] = ()
    hosts: tuple[str, ...] = HOSTS
    parameters: Mapping[str, Any] = field(default_factory=dict)
    doc: str = ""


def methods() -> dict[str, MethodInfo]:
    """Every name that `make_objective` takes, with what it does, needs and can be set to."""
    found: dict[str, MethodInfo] = {}
    for name, cls in METHODS.items():
        doc = inspect.cleandoc(cls.__doc__ or "")
        found[name] = MethodInfo(
            name, cls.kind, doc.split("\n", 1)[0], cls.paper, cls.needs, cls.hosts,
            cls.parameters(), doc,
        )  # fmt: skip
    for name, recipe in RECIPES.items():
        parts = [found[part] for part, _ in recipe.chain]
        defaults: dict[str, Any] = {}
        for part, (_, given) in zip(parts, recipe.chain, strict=True):
            defaults |= {**part.parameters, **given}
        chain = " + ".join([recipe.advantage, *(part.name for part in parts)])
        found[name] = MethodInfo(
            name,
            "recipe",
            recipe.summary,
            recipe.paper,
            tuple(sorted({need for part in parts for need in part.needs})),
            tuple(host for host in HOSTS if all(host in part.hosts for part in parts)),
            defaults,
            f"{recipe.summary}\n\n{name} = {chain}\n\n" + "\n\n".join(part.doc for part in parts),
        )
    return found


MethodSpec = str | Mapping[str, Any] | Sequence["str | Mapping[str, Any]"]


def resolve(
    spec: MethodSpec, params: Mapping[str, Any], advantage: str | None
) -> tuple[tuple[Method, ...], tuple[str, ...], str]:
    """From what a user wrote to (methods, their names, advantage estimator).

    The surrogate comes first, interventions follow in the order written.

    Raises:
        ValueError: an unknown name or parameter, two surrogates, two estimators.
    """
    if isinstance(spec, str | Mapping):
        items = [_item(spec, params)]
    else:
        if params:
            raise ValueError(
                "make_objective: parameters beside a list are ambiguous "
                f"({', '.join(params)}); write them inside: "
                '[{"name": ..., "param": ...}]'
            )
        items = [_item(entry, {}) for entry in spec]
    if not items:
        raise ValueError("make_objective: the list of methods is empty")
    chain: list[tuple[str, Method]] = []
    estimators: list[str] = []
    for name, given in items:
        if name in METHODS:
            chain.append((name, _build(name, METHODS[name], given)))
        elif name in RECIPES:
            estimators.append(RECIPES[name].advantage)
            chain.extend(_expand(name, given))
        elif name in ESTIMATORS:
            if given:
                raise ValueError(f"{name}: an advantage estimator takes no parameters")
            estimators.append(name)
        else:
            raise ValueError(unknown("method", name, {*METHODS, *RECIPES, *ESTIMATORS}))
    bases = [method.base for _, method in chain if method.kind == "intervention"]
    base = bases[0] if bases else "grpo"
    written = [name for name, _ in chain]
    for name in written:
        if written.count(name) > 1:
            raise ValueError(f"make_objective: {name!r} stands twice in {', '.join(written)}")
    surrogates = [name for name, method in chain if method.kind == "surrogate"]
    if len(surrogates) > 1:
        raise ValueError(
            f"make_objective: two surrogates ({', '.join(surrogates)}); an objective has one. "
            "Keep one and list interventions beside it"
        )
    if not surrogates:
        chain = _expand(base, {}) + chain
    if advantage is not None:
        if advantage not in ESTIMATORS:
            raise ValueError(unknown("advantage estimator", advantage, ESTIMATORS))
        estimators = [advantage]
    if len(set(estimators)) > 1:
        raise ValueError(
            f"make_objective: two advantage estimators ({', '.join(estimators)}); name one"
        )
    chosen = estimators[0] if estimators else RECIPES[base].advantage
    chain.sort(key=lambda pair: pair[1].kind != "surrogate")
    return tuple(m for _, m in chain), tuple(n for n, _ in chain), chosen


def _item(entry: Any, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return entry, dict(params)
    if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
        return entry["name"], {k: v for k, v in entry.items() if k != "name"} | dict(params)
    raise ValueError(f"make_objective: a method is a name or a table with a 'name', got {entry!r}")


def _build(name: str, cls: type[Method], given: Mapping[str, Any]) -> Method:
    known = cls.parameters()
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{name}: {unknown('parameter', key, known)}")
        default = known[key]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(default, bool) and not isinstance(value, bool):
            raise ValueError(f"{name}: {key} must be true or false, got {value!r}")
        if isinstance(default, str) and not isinstance(value, str):
            raise ValueError(f"{name}: {key} must be a word, got {value!r}")
        if isinstance(default, int | float | None) and not isinstance(default, bool):
            optional = "None" in str(cls.__dataclass_fields__[key].type)
            if not number and not (value is None and optional):
                raise ValueError(f"{name}: {key} must be a number, got {value!r}")
    return cls(**given)


def _expand(name: str, given: Mapping[str, Any]) -> list[tuple[str, Method]]:
    recipe = RECIPES[name]
    known = {key for part, _ in recipe.chain for key in METHODS[part].parameters()}
    for key in given:
        if key not in known:
            raise ValueError(f"{name}: {unknown('parameter', key, known)}")
        owners = [part for part, _ in recipe.chain if key in METHODS[part].parameters()]
        if len(owners) > 1:
            raise ValueError(
                f"{name}: {key!r} could mean that of {' or '.join(owners)}; write the list out"
            )
    out = []
    for part, defaults in recipe.chain:
        cls = METHODS[part]
        mine = {key: value for key, value in given.items() if key in cls.parameters()}
        out.append((part, _build(part, cls, {**defaults, **mine})))
    return out


__all__ = ["METHODS", "RECIPES", "Method", "MethodInfo", "MethodSpec", "Recipe", "methods"]
