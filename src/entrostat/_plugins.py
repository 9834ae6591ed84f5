"""Third-party code: modules named as MODULE:NAME, and entry points of installed packages.

A package offers a name by an entry point of the group `entrostat.methods`, `entrostat.tasks` or
`entrostat.graders`. The names are read from the packages' metadata; a package is imported when one
of its names is used. entrostat's own names take precedence.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import in_one_line

_NOT_THEIRS = (Path(__file__).parent, Path(importlib.__file__).parent)


@dataclass(frozen=True)
class Offer:
    """A name that an installed package offers."""

    kind: str  # "method", "task" or "grader"
    name: str  # the name that users write
    target: str  # MODULE:NAME of its object
    package: str  # the installed distribution, with its version

    @property
    def whose(self) -> str:
        """Name, package and target, for error messages."""
        return f"{self.kind} {self.name!r} of the package {self.package} ({self.target})"

    def load(self) -> Any:
        """Import the module and return the object.

        Raises:
            ValueError: importing it raised, or the module has no such name.
        """
        try:
            return EntryPoint(self.name, self.target, f"entrostat.{self.kind}s").load()
        except Exception as error:  # anything that a package's module raises is about that package
            raise ValueError(f"{self.whose}: loading it raised {in_one_line(error)}") from error


def offers(kind: str) -> list[Offer]:
    """All names of a kind that installed packages offer, sorted; imports none of them."""
    found = []
    for entry in entry_points(group=f"entrostat.{kind}s"):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "without metadata"
        found.append(Offer(kind, entry.name, entry.value, package))
    return sorted(found, key=lambda offer: (offer.name, offer.package))


def offered(kind: str, name: str) -> Offer | None:
    """The offer of a name; None if no package has it.

    Raises:
        ValueError: several packages have the name.
    """
    found = [offer for offer in offers(kind) if offer.name == name]
    if len(found) > 1:
        packages = " and ".join(f"{offer.package} ({offer.target})" for offer in found)
        raise ValueError(
            f"{kind} {name!r} is offered by {packages}; uninstall one of them, or write MODULE:NAME"
        )
    return found[0] if found else None


def find(name: str, what: str) -> tuple[ModuleType, str]:
    """The module of "MODULE:NAME", in the current folder or installed, and NAME.

    `what` is the kind of object in an error message: "task", "method".

    Raises:
        ValueError: there is no such module, or importing it raised.
    """
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name), attribute
    except Exception as error:  # anything that a user's module raises is about that module
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.split(".")[0]:
            raise ValueError(
                f"unknown {what} {name!r}: no module {module_name!r} in the current folder or "
                "installed"
            ) from None
        raise ValueError(
            f"{what} {name!r}: importing it raised {in_one_line(error)}{_place(error)}"
        ) from error


def _place(error: BaseException) -> str:
    """The place in third-party code that raised an exception; "" without such a frame."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.suffix == ".py" and not any(map(file.is_relative_to, _NOT_THEIRS)):
            return f" ({file.name}, line {frame.lineno})"
    return ""
