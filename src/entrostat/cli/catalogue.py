"""`entrostat methods`."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import TYPE_CHECKING

from .._text import say
from .flags import one_name
from .terminal import say_entry, wrapped

if TYPE_CHECKING:
    from ..method import MethodInfo

METHODS = """\
usage: entrostat methods [NAME]

List the methods, or explain one.

Examples:
  entrostat methods
  entrostat methods clip_cov
  entrostat methods my_module:my_method    (registered by @entrostat.register)

Methods of installed packages (entry points of the group `entrostat.methods`)
are listed with their package, which is imported when one of its names is used.
"""


def methods_verb(args: list[str]) -> int:
    name = one_name(args, METHODS)
    if name is not None:
        _explain(name)
        return 0
    from ..core.advantages import ESTIMATORS
    from ..method import methods
    from ..method.base import HOSTS

    known = methods()
    legend = (
        "In brackets: the paper and its section (docs/paper_index.md says which paper), what the "
        "method needs beyond log-probs and advantages, and where it runs if not everywhere."
    )
    say(f"{wrapped(legend, most=110)}\n")
    for kind in ("surrogate", "intervention", "recipe"):
        say(f"{kind}s")
        for info in (info for info in known.values() if info.kind == kind):
            about = [_source(info)]
            if info.needs:
                about.append(f"needs {', '.join(info.needs)}")
            if set(info.hosts) != set(HOSTS):
                about.append(f"runs in {', '.join(info.hosts)}")
            say_entry(info.name, info.summary, f"[{'; '.join(about)}]", most=110)
        say()
    _list_packages(known)
    say(f"advantage estimators (--advantage, or among the methods): {', '.join(ESTIMATORS)}")
    return 0


def _explain(name: str) -> None:
    from ..core.advantages import ESTIMATORS, advantages
    from ..core.objective import make_objective
    from ..method import imported, methods, unknown_method

    name = imported(name)
    info = methods().get(name)
    if name in ESTIMATORS:
        doc = inspect.getdoc(advantages) or ""
        (line,) = (w for w in doc.splitlines() if w.startswith(f"{name} "))
        say(f"{name} (advantage estimator): {line.removeprefix(name).strip()}")
        if info is None:
            return
        say("\nBeside other methods the name means this estimator. Alone it is the recipe:\n")
    if info is None:
        raise ValueError(unknown_method(name))
    say(f"{name} ({info.kind}; {_source(info)})\n\n{info.doc}\n\nalone: {make_objective(name)}")
    if info.baseline:
        say(f"fair baseline: {info.baseline} (differs in this method alone)")
    say(f"needs: {', '.join(info.needs) or 'nothing beyond log-probs and advantages'}")
    say(f"hosts: {', '.join(info.hosts)}")
    say("parameters:" if info.parameters else "parameters: none")
    for key, value in info.parameters.items():
        say(f"  {key} = {value}")


def _source(info: MethodInfo) -> str:
    """The paper, the package that was installed, or "your own"."""
    from .._plugins import offers
    from ..method import is_ours

    if is_ours(info.name):
        return info.paper
    sources = [offer.package for offer in offers("method") if offer.name == info.name]
    return "; ".join([info.paper] * bool(info.paper) + sources) or "your own"


def _list_packages(known: Collection[str]) -> None:
    """List methods of installed packages that are not registered yet, without importing them."""
    from .._plugins import offers
    from ..method import is_ours

    others = [offer for offer in offers("method") if is_ours(offer.name) or offer.name not in known]
    if not others:
        return
    say("of installed packages (`entrostat methods NAME` imports the package and explains)")
    for offer in others:
        hidden = ": hidden by entrostat's own of that name" if is_ours(offer.name) else ""
        say(f"  {offer.name:<16} {offer.package} ({offer.target}){hidden}")
    say()
