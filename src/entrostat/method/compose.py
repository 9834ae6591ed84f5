"""From the user's method names to a chain of methods, or to an error with the reason."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .._names import unknown
from ..control import Multiplier, Target, Thermostat, parse_target
from ..control.target import is_schedule
from ..core.advantages import ESTIMATORS
from ..core.loss import Aggregation
from .base import Method
from .controlled import Controlled
from .lookup import imported, unknown_method, unknown_parameter
from .recipes import RECIPES
from .registry import METHODS
from .repo import Adapo
from .schedules import schedule_of, scheduled
from .surrogates import Gspo
from .thermostat import HeldEntropy

MethodSpec = str | Mapping[str, Any] | Sequence["str | Mapping[str, Any]"]
Chain = list[tuple[str, Method]]


def resolve(
    spec: MethodSpec,
    params: Mapping[str, Any],
    advantage: str | None,
    aggregation: Aggregation | None = None,
) -> tuple[tuple[Method, ...], tuple[str, ...], str, Aggregation]:
    """Resolve the user's names to methods, their names, an estimator and an aggregation.

    The surrogate comes first, interventions follow in the order written. Estimator and aggregation
    are those given, else those of a recipe in the list, else those of the methods' `base`.
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
    chain: Chain = []
    estimators: list[str] = []
    aggregations: list[Aggregation] = []
    brought: dict[str, str] = {}  # name of a method -> the user's name for it
    for name, given in items:
        before = len(chain)
        if name in METHODS:
            made = built(name, METHODS[name], given)
            if isinstance(made, HeldEntropy) and made.stands_for is not None:
                part, its = made.stands_for
                chain.append((part, built(part, METHODS[part], its)))
            else:
                chain.append((name, made))
        elif name in ESTIMATORS and name in RECIPES and len(items) > 1 and not given:
            estimators.append(name)  # beside others "grpo" is the estimator, alone the algorithm
        elif name in RECIPES:
            estimators.append(RECIPES[name].advantage)
            aggregations.append(RECIPES[name].aggregation)
            chain.extend(_expand(name, given))
        elif name in ESTIMATORS:
            if given:
                raise ValueError(f"{name}: an advantage estimator takes no parameters")
            estimators.append(name)
        else:
            raise ValueError(unknown_method(name))
        brought |= {part: name for part, _ in chain[before:] if part != name}
    base = _base([method for _, method in chain])
    if not any(method.kind == "surrogate" for _, method in chain):
        surrogate, given = (base, {}) if base in METHODS else RECIPES[base].chain[0]
        _warn_of_other_bases(chain, base)
        chain.append((surrogate, built(surrogate, METHODS[surrogate], given)))
    chain.sort(key=lambda pair: pair[1].kind != "surrogate")
    chain = _adapo_on_gspo(chain, dict(items))
    if advantage is not None:
        if advantage not in ESTIMATORS:
            raise ValueError(unknown("advantage estimator", advantage, ESTIMATORS))
        estimators = [advantage]
    if len(set(estimators)) > 1:
        raise ValueError(
            f"make_objective: two advantage estimators ({', '.join(estimators)}); name one"
        )
    _check(chain, brought)
    under = RECIPES[base if base in RECIPES else Method.base]
    if aggregation is None and len(set(aggregations)) > 1:
        raise ValueError(
            f"make_objective: two aggregations ({', '.join(aggregations)}) in "
            f"{', '.join(name for name, _ in items)}; pass the one you mean (optim.aggregation)"
        )
    return (
        tuple(method for _, method in chain),
        tuple(name for name, _ in chain),
        (estimators or [under.advantage])[0],
        aggregation or (aggregations or [under.aggregation])[0],
    )


def _adapo_on_gspo(chain: Chain, given: Mapping[str, Mapping[str, Any]]) -> Chain:
    """Merge the two surrogates: ADAPO with GSPO's ratio, clip and a range scaled to that clip."""
    surrogates = [pair for pair in chain if pair[1].kind == "surrogate"]
    gspo = dict(surrogates).get("gspo")
    if sorted(name for name, _ in surrogates) != ["adapo", "gspo"] or not isinstance(gspo, Gspo):
        return chain
    if gspo.schedules or gspo.low is None or not gspo.high:
        return chain
    width = gspo.high / Adapo.high
    settings = {
        "ratio": "sequence", "low": gspo.low, "high": gspo.high,
        "high_min": width * Adapo.high_min, "high_max": width * Adapo.high_max,
    }  # fmt: skip
    return [("adapo", built("adapo", Adapo, settings | dict(given["adapo"]))), *chain[2:]]


def _base(methods: list[Method]) -> str:
    """The base of a chain without a surrogate: the first intervention's that sets one.

    For a surrogate alone, the base gives the advantage estimator.
    """
    interventions = [method for method in methods if method.kind == "intervention"]
    bases = [method.base for method in interventions or methods]
    return next((base for base in bases if base != Method.base), Method.base)


def _warn_of_other_bases(chain: Chain, base: str) -> None:
    first = next((name for name, method in chain if method.base == base), "")
    for name, method in chain:
        if method.base not in (base, Method.base):
            warnings.warn(
                f"make_objective: {first} sits on {base}, {name} on {method.base}; {first} is "
                f"listed first, so both are over {base}. List the one that you mean as well: "
                f"{base!r} or {method.base!r}",
                stacklevel=4,
            )


def _check(chain: Chain, brought: Mapping[str, str]) -> None:
    """Raise on contradictory combinations; `brought` as in `resolve`."""
    names = [name for name, _ in chain]
    parts = [(name, method.controls()) for name, method in chain]
    for name, coefficient in parts:
        # a clip bound has two sides
        if parts.count((name, coefficient)) > 1 and METHODS[name].kind != "surrogate":
            own = f"; {brought.get(name)} is {name} with settings of its own"
            also = own if name in brought else ""
            raise ValueError(f"make_objective: {name!r} stands twice in {', '.join(names)}{also}")
    surrogates = [name for name, method in chain if method.kind == "surrogate"]
    if len(surrogates) > 1:
        reasons = [METHODS[name].alone for name in surrogates]
        why = next((reason for reason in reasons if reason != Method.alone), Method.alone)
        raise ValueError(
            f"make_objective: two surrogates ({', '.join(surrogates)}): {why}. "
            "Keep one and list interventions beside it"
        )
    owners: dict[str, str] = {}
    for name, method in chain:
        coefficient = method.controls()
        if coefficient in owners:
            raise ValueError(
                f"make_objective: {owners[coefficient]} and {name} both control {coefficient} "
                "from the same entropy and would fight; keep one, or fix the other's coefficient"
            )
        if coefficient is not None:
            owners[coefficient] = name
    _check_laws(chain)
    _check_special_rollouts(chain)
    edited = None
    for name, method in chain:
        if method.replaces_advantages and edited is not None:
            raise ValueError(
                f"make_objective: {name} computes the advantages anew from the rewards, so "
                f"{edited}'s edits before it would be lost; list {edited} after {name}"
            )
        if type(method).prepare is not Method.prepare:
            edited = name
    for name, method in chain:
        for other in method.contradicts.keys() & set(names):
            raise ValueError(
                f"make_objective: {name} and {other} {method.contradicts[other]}; keep one"
            )


def _check_laws(chain: Chain) -> None:
    """Raise on two thermostats, or on controllers with different entropy targets.

    Defaults of the papers' controllers may differ: the user did not set them. Gates (adaptive
    entropy, STARE) do not count: they hold no target.
    """
    held: str | None = None
    first: tuple[str, Any, bool] | None = None
    for name, method in chain:
        law = method.law() if isinstance(method, Controlled) else None
        if law is None:
            continue
        thermostat = isinstance(law, Thermostat | Multiplier)
        if thermostat and held is not None:
            raise ValueError(
                f"make_objective: {held} and {name} are both thermostats of the same entropy "
                "and would fight; keep one"
            )
        held = name if thermostat else held
        spec = law.target
        meant = thermostat or spec != method.parameters().get("target")
        if first is None:
            first = name, spec, meant
        elif (meant or first[2]) and parse_target(spec) != parse_target(first[1]):
            one, other = ("1x" if each is None else each for each in (first[1], spec))
            raise ValueError(
                f"make_objective: {first[0]} steers entropy to {one!r} and {name} to {other!r}, "
                "and there is one entropy; give both the same target, or keep one"
            )


def _check_special_rollouts(chain: Chain) -> None:
    resampling = [name for name, m in chain if type(m).resamples is not Method.resamples]
    choosing = [name for name, m in chain if type(m).choose is not Method.choose]
    balancing = [name for name, m in chain if m.influence_sample() is not None]
    penalties = [name for name, m in chain if m.penalises]
    anew = [name for name, m in chain if m.replaces_advantages]
    if len(resampling) > 1:
        raise ValueError(
            f"make_objective: {' and '.join(resampling)} both sample a second time; keep one"
        )
    if penalties and (choosing or balancing):
        why = "leaves out" if choosing else "does not weigh"
        raise ValueError(
            f"make_objective: {penalties[0]} acts on every token sampled, also on those that "
            f"{(choosing or balancing)[0]} {why}; keep one"
        )
    if choosing and anew:
        raise ValueError(
            f"make_objective: {anew[0]} computes the advantages anew, so those that {choosing[0]} "
            "gives its rollouts would be lost; keep one"
        )


def _item(entry: Any, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return imported(entry), dict(params)
    if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
        given = {k: v for k, v in entry.items() if k != "name"} | dict(params)
        return imported(entry["name"]), given
    raise ValueError(f"make_objective: a method is a name or a table with a 'name', got {entry!r}")


def built(name: str, cls: type[Method], given: Mapping[str, Any]) -> Method:
    """Build a method from a user's or a file's parameters; the others keep their defaults."""
    known = cls.parameters()
    given = dict(given)
    moving: dict[str, tuple[str, Target]] = {}
    for key, value in given.items():
        if key not in known:
            raise ValueError(unknown_parameter(name, key, known))
        hint = str(cls.__dataclass_fields__[key].type)
        if is_schedule(value) and "float" in hint and "str" not in hint:
            moving[key] = value, schedule_of(f"{name}: {key}", value)
            given[key] = moving[key][1].at(0.0, 0.0)
        elif ("None" in hint or "Optional" in hint) and value in (None, "none"):
            given[key] = None  # TOML has no null
        elif kind := _other_kind(value, known[key], hint):
            raise ValueError(f"{name}: {key} must be {kind}, got {value!r}")
    method = cls(**given)
    return scheduled(name, method, moving) if moving else method


def _other_kind(value: Any, default: Any, hint: str) -> str:
    """The kind of value that a parameter must have if `value` is of another kind; else ""."""
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(default, str):
        return "" if isinstance(value, str) else "a word"
    if "str" in hint and isinstance(value, str):  # a target of a controller
        return ""
    numeric = isinstance(default, int | float) or (default is None and "str" not in hint)
    if numeric and (isinstance(value, bool) or not isinstance(value, int | float)):
        return "a number"
    whole = hint in ("int", "<class 'int'>")
    return "a whole number" if whole and not isinstance(value, int) else ""


def _expand(name: str, given: Mapping[str, Any]) -> Chain:
    recipe = RECIPES[name]
    for key in given:
        owners = [part for part, _ in recipe.chain if key in METHODS[part].parameters()]
        if not owners:
            known = {key for part, _ in recipe.chain for key in METHODS[part].parameters()}
            raise ValueError(unknown_parameter(name, key, known))
        if len(owners) > 1:
            raise ValueError(
                f"{name}: {key!r} could mean that of {' or '.join(owners)}; write the list out"
            )
    out = []
    for part, defaults in recipe.chain:
        cls = METHODS[part]
        mine = {key: value for key, value in given.items() if key in cls.parameters()}
        out.append((part, built(part, cls, {**defaults, **mine})))
    return out
