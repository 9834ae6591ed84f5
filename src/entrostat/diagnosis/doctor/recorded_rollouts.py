"""Recorded rollouts that the checks may be asked on."""

from __future__ import annotations

from pathlib import Path

from ...logs.rollouts import Rollouts, load_rollouts


def rollouts_at(path: str | Path) -> Rollouts:
    """The rollouts of a file, or a run's first: its later ones are another policy's.

    Raises:
        ValueError: there are none, or they hold texts without tokens.
    """
    path, first = Path(path), None
    if path.is_dir():
        folder = path / "rollouts" if (path / "rollouts").is_dir() else path
        first = min((int(p.stem) for p in folder.glob("*.safetensors") if p.stem.isdigit()),
                    default=None)  # fmt: skip
    found = load_rollouts(path, first)
    if not len(found.tokens):
        raise ValueError(f"--rollouts {str(path)!r}: it holds texts, but no token ids")
    return found
