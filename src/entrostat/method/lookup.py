"""Look up a method's name: built in, in the user's module, or in an installed package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._names import unknown
from .._plugins import find, offered, offers
from ..core.advantages import ESTIMATORS
from .recipes import RECIPES
from .registry import METHODS, is_ours, register


def imported(name: str) -> str:
    """Import the module of "MODULE:NAME" and return the registered name; other names unchanged.

    An unknown name is registered if an installed package has an entry point for it.
    """
    if ":" not in name:
        known = name in METHODS or name in RECIPES or name in ESTIMATORS
        if not known and (offer := offered("method", name)) is not None:
            cls = offer.load()
            try:
                register(name)(cls)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{offer.whose}: {error}") from None
        return name
    module, _, method = name.partition(":")
    find(name, "method")
    found = METHODS.get(method)
    if found is None or (is_ours(method) and not module.startswith("entrostat.")):
        raise ValueError(
            f"method {name!r}: {module} was imported but registers no {method!r}; "
            f'decorate the class with @entrostat.register("{method}")'
        )
    return method


def unknown_method(name: str) -> str:
    listed = "`entrostat methods` lists them. One of your own is MODULE:NAME."
    others = [offer.name for offer in offers("method")]
    return unknown("method", name, {*METHODS, *RECIPES, *ESTIMATORS, *others}, listed)


def unknown_parameter(who: str, key: str, known: Iterable[str]) -> str:
    """One line: what parameters `who` has, and which methods have this one."""
    others = sorted(name for name, cls in METHODS.items() if key in cls.parameters())
    has = "have" if len(others) > 1 else "has"
    also = f" {', '.join(others)} {has} {key!r}." if others else ""
    return f"{who}: {unknown('parameter', key, known)}{also}"


def owners(parameter: str, names: Sequence[str]) -> list[str]:
    """The methods in `names` that have the parameter; a ValueError if none has."""
    found, known = [], set()
    for given in names:
        name = imported(given)
        if name in METHODS:
            mine = set(METHODS[name].parameters())
        elif name in RECIPES:
            mine = {key for part, _ in RECIPES[name].chain for key in METHODS[part].parameters()}
        elif name in ESTIMATORS:
            continue
        else:
            raise ValueError(unknown_method(name))
        known |= mine
        if parameter in mine:
            found.append(given)
    if not found:
        raise ValueError(unknown_parameter(", ".join(names), parameter, known))
    return found
