"""`entrostat methods`."""

from __future__ import annotations

import inspect

from .._names import refuse_options
from .._text import say


def methods_verb(args: list[str]) -> int:
    """List the methods, or explain one."""
    if args in (["-h"], ["--help"]):
        say(
            "usage: entrostat methods [NAME]\n\nList the methods, or explain one.\n\n"
            "Examples:\n  entrostat methods\n  entrostat methods clip_cov\n"
            "  entrostat methods my_module:my_method    (registered by @entrostat.register)"
        )
        return 0
    refuse_options(args, "entrostat methods", ("help",))
    if len(args) > 1:
        raise ValueError(f"methods takes one name, got {' '.join(args)}")
    import shutil
    import textwrap

    from ..advantage import ESTIMATORS
    from ..advantage import advantages as estimate
    from ..method import imported, methods, unknown_method
    from ..method.base import HOSTS
    from ..objective import make_objective

    if args:
        args = [imported(args[0])]
    known = methods()
    if args:
        if args[0] in ESTIMATORS:
            doc = inspect.getdoc(estimate) or ""
            (line,) = (w for w in doc.splitlines() if w.startswith(f"{args[0]} "))
            say(f"{args[0]} (advantage estimator): {line.removeprefix(args[0]).strip()}")
            if args[0] not in known:
                return 0
            say("\nBeside other methods the name means this estimator. Alone it is the recipe:\n")
        if args[0] not in known:
            raise ValueError(unknown_method(args[0]))
        info = known[args[0]]
        say(f"{info.name} ({info.kind}; {info.paper or 'your own'})\n\n{info.doc}\n")
        say(f"alone: {make_objective(info.name)}")
        if info.baseline:
            say(f"fair baseline: {info.baseline} (differs in this method alone)")
        say(f"needs: {', '.join(info.needs) or 'nothing beyond log-probs and advantages'}")
        say(f"hosts: {', '.join(info.hosts)}")
        say("parameters:" if info.parameters else "parameters: none")
        for key, value in info.parameters.items():
            say(f"  {key} = {value}")
        return 0
    width = min(shutil.get_terminal_size().columns, 110)
    indent = " " * 19
    legend = (
        "In brackets: the paper and its section (docs/paper_index.md says which paper), what the "
        "method needs beyond log-probs and advantages, and where it runs if not everywhere."
    )
    say(f"{textwrap.fill(legend, width)}\n")
    for kind in ("surrogate", "intervention", "recipe"):
        say(f"{kind}s")
        for info in (info for info in known.values() if info.kind == kind):
            about = [info.paper or "your own"]
            if info.needs:
                about.append(f"needs {', '.join(info.needs)}")
            if set(info.hosts) != set(HOSTS):
                about.append(f"runs in {', '.join(info.hosts)}")
            text = textwrap.fill(
                info.summary, width, initial_indent=indent, subsequent_indent=indent
            )
            say(f"  {info.name:<16} {text[len(indent) :]}\n{indent}[{'; '.join(about)}]")
        say()
    say(f"advantage estimators (--advantage, or among the methods): {', '.join(ESTIMATORS)}")
    return 0
