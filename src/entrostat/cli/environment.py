"""`entrostat doctor --environment`: what is installed here, for a bug report."""

from __future__ import annotations

import textwrap
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement

# extras for development, and the one that only combines others
_LEFT_OUT = ("all", "dev", "docs", "dist")


def environment_report() -> dict[str, Any]:
    """Collect versions and hardware; no path, environment variable or command line.

    Returns:
        `entrostat`, `git`, `python`, `platform`, `processors`, `processor`, `gpus`, `device` (what
        `device = "auto"` takes), `trainers` (by name: `tested`, `installed`) and `extras`: for ""
        (the dependencies of entrostat alone) and each extra, by package, `installed` (None if it
        is missing), `required` and `fits`. `extras` is empty if entrostat is not installed.
    """
    from .._version import __version__
    from ..models.loading import device_of
    from ..runs.run_directory import environment
    from ..trainers.verl.selfcheck import VERSION

    known = environment()
    extras = _extras()
    trl = extras.get("trl", {}).get("trl", {}).get("required", "")
    tested = {"trl": trl.removeprefix("=="), "verl": VERSION}
    names = ("git", "python", "platform", "processors", "processor", "gpus")
    return {
        "entrostat": __version__,
        **{key: known[key] for key in names},
        "device": str(device_of("auto")),
        "trainers": {
            name: {"tested": version, "installed": _version(name)}
            for name, version in tested.items()
        },
        "extras": extras,
    }


def environment_lines(report: dict[str, Any]) -> list[str]:
    gpus = ", ".join(report["gpus"]) or "none"
    lines = [
        f"entrostat  {report['entrostat']}" + f" (git {report['git']})" * bool(report["git"]),
        f"python     {report['python']} on {report['platform']}",
        f"processor  {report['processors']} x {report['processor']}",
        f"gpus       {gpus}; device auto is {report['device']}",
    ]
    for name, versions in report["trainers"].items():
        tested = versions["tested"] or "unknown, entrostat is not installed as a package"
        lines.append(f"{name:<9}  {versions['installed'] or 'not installed'}; tested with {tested}")
    for name, packages in report["extras"].items():
        words = []
        for package, state in packages.items():
            version = state["installed"]
            odd = version is not None and not state["fits"]
            words.append(f"{package} {version or 'missing'}")
            words[-1] += f" (required: {state['required']})" * odd
        start = f"[{name}]  " if name else "dependencies  "
        text = start + ", ".join(words)
        lines += textwrap.wrap(text, 98, subsequent_indent="    ", break_on_hyphens=False)
    return lines


def _extras() -> dict[str, dict[str, dict[str, Any]]]:
    try:
        about = metadata.metadata("entrostat")
    except metadata.PackageNotFoundError:
        return {}
    extras: dict[str, dict[str, dict[str, Any]]] = {"": {}}
    extras |= {name: {} for name in about.get_all("Provides-Extra") or () if name not in _LEFT_OUT}
    for one in map(Requirement, metadata.requires("entrostat") or ()):
        applying = [n for n in extras if one.marker is None or one.marker.evaluate({"extra": n})]
        for name in applying[:1] if "" in applying else applying:
            if one.name != "entrostat":
                version = _version(one.name)
                fits = version is not None and one.specifier.contains(version, prereleases=True)
                extras[name][one.name] = {
                    "installed": version, "required": str(one.specifier), "fits": fits,
                }  # fmt: skip
    return extras


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
