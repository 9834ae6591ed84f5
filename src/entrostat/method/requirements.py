"""What a host has to supply to a chain of methods: refused before the run, never found in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.batch import ALWAYS
from .base import Method


def check_host(
    names: Sequence[str], methods: Sequence[Method], host: str, fields: Iterable[str]
) -> None:
    """Refuse what a host cannot supply.

    Args:
        names: of the methods.
        methods: the chain.
        host: "lab", "trl" or "verl".
        fields: the `TokenBatch` fields that the host fills.

    Raises:
        ValueError: names the method, what it needs and what to do.
    """
    fields = set(fields)
    for name, method in zip(names, methods, strict=True):
        instead = f". {method.instead}" if method.instead else ""
        if host not in method.hosts:
            raise ValueError(
                f"`{name}` does not run in {host}; it runs in {', '.join(method.hosts)}{instead}"
            )
        for need in method.required():
            if need not in fields and need not in ALWAYS:
                raise ValueError(
                    f"`{name}` needs `{need}`; {host} does not supply it here{instead}"
                )


def check_updates(names: Sequence[str], methods: Sequence[Method], updates: int) -> None:
    """Refuse several updates per rollout batch where a method is sound with one only.

    Raises:
        ValueError: names the method.
    """
    chain = zip(names, methods, strict=True)
    culprits = [f"`{name}`" for name, method in chain if method.on_policy]
    if updates > 1 and culprits:
        raise ValueError(
            f"{' and '.join(culprits)}: strictly on-policy, so one update per rollout batch, "
            f"not {updates}; later updates would see another policy than the one that "
            "sampled. Set epochs and minibatches to 1 (--optim.epochs 1 --optim.minibatches 1)"
        )
