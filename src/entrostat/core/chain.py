"""A chain of methods with their states: requirements, controllers, checkpoint state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ..control import Observation
from ..method import Method, Resample
from ..method.checks import Data, returned
from ..method.controlled import Controlled
from ..method.schedules import at
from ..method.state_dict import check_savable, restored
from .batch import ALWAYS, TokenBatch
from .loss import Aggregation

Conventions = Literal["entrostat", "trl"]


class Chain:
    """Methods in order, each with its state; `Objective` documents the attributes."""

    def __init__(
        self,
        methods: tuple[Method, ...],
        names: tuple[str, ...],
        advantage: str,
        aggregation: Aggregation = "token_mean",
        max_length: int | None = None,
        conventions: Conventions = "entrostat",
    ) -> None:
        self.conventions: Conventions = conventions
        self.methods = methods
        self.names = names
        self.advantage = advantage
        self.aggregation: Aggregation = aggregation
        self.max_length = max_length
        shaping = [n for n, m in zip(names, methods, strict=True)
                   if type(m).shape is not Method.shape]  # fmt: skip
        if advantage == "gdpo" and shaping:
            raise ValueError(
                f"make_objective: {shaping[0]} edits one reward per rollout, and gdpo normalizes "
                "each reward function on its own; keep one"
            )
        self.states: list[Any] = [method.init() for method in methods]
        check_savable(names, self.states)
        self._progress: float | None = None  # of the scheduled parameters' current values
        self._validated: set[str] = set()  # hooks whose results were checked

    def __repr__(self) -> str:
        chain = ", ".join(repr(method) for method in self.methods)
        return f"{type(self).__name__}({self.advantage} | {chain} | {self.aggregation})"

    @property
    def strictly_on_policy(self) -> bool:
        """Whether the methods are valid for one update per rollout batch only."""
        return any(method.on_policy for method in self.methods)

    @property
    def needs(self) -> frozenset[str]:
        """The `TokenBatch` fields that the methods read beyond those of every batch."""
        return frozenset(need for method in self.methods for need in method.required())

    @property
    def reads_current(self) -> bool:
        """Whether `plan` reads the current policy's logp or entropy of the whole minibatch.

        If not, a trainer may plan on the old policy's and save a forward pass before the update.
        """
        plans = [m for m in self.methods if type(m).plan is not Method.plan]
        return any(method.reads_current for method in plans)

    @property
    def penalises(self) -> bool:
        """Whether a penalty acts on the tokens of zero-advantage groups."""
        return any(method.penalises for method in self.methods)

    def check_host(self, host: str, fields: Iterable[str], updates: int = 1) -> None:
        """Check, before the run, that a trainer supplies what the methods need.

        Args:
            host: "lab", "trl" or "verl".
            fields: the `TokenBatch` fields that the trainer fills.
            updates: optimizer steps per rollout batch.

        Raises:
            ValueError: a method lacks a field or cannot run there; says what to do.
        """
        filled = {*ALWAYS, *fields}
        for name, method, _ in self.chain():
            instead = f". {method.instead}" if method.instead else ""
            if host not in method.hosts:
                where = ", ".join(method.hosts)
                raise ValueError(f"`{name}` does not run in {host}; it runs in {where}{instead}")
            for need in method.required():
                if need not in filled:
                    raise ValueError(
                        f"`{name}` needs `{need}`; {host} does not supply it here{instead}"
                    )
        self.check_updates(updates)

    def check_updates(self, updates: int) -> None:
        """Check that the methods allow this number of updates per rollout batch.

        Raises:
            ValueError: a method allows one update only, and `updates` is larger.
        """
        culprits = [f"`{name}`" for name, method, _ in self.chain() if method.on_policy]
        if updates > 1 and culprits:
            raise ValueError(
                f"{' and '.join(culprits)}: strictly on-policy, so one update per rollout batch, "
                f"not {updates}; later updates would see another policy than the one that "
                "sampled. Set epochs and minibatches to 1 (--optim.epochs 1 --optim.minibatches 1)"
            )

    @property
    def shapes_by_reference(self) -> bool:
        """Whether rewards are edited by the reference's log-probs before the estimator runs."""
        return any(
            "ref_logp" in method.required() and type(method).shape is not Method.shape
            for method in self.methods
        )

    def resamples(self) -> Resample | None:
        """The further rollouts that this iteration needs, after `observe`; None for none."""
        asked = (method.resamples(state) for _, method, state in self.chain())
        return next((found for found in asked if found is not None), None)

    def influence_sample(self) -> float | None:
        """The largest share of the prompts whose influences a method needs; None for none."""
        asked = [method.influence_sample() for method in self.methods]
        return max((share for share in asked if share is not None), default=None)

    def observe(
        self,
        *,
        entropy: float,
        nll: float | None = None,
        progress: float | None = None,
        stderr: float | None = None,
        response_mean: float | None = None,
    ) -> None:
        """Update the controllers, once per iteration, before its optimizer steps.

        Args:
            entropy: masked mean of the exact entropy over the full rollout batch, nats.
            nll: masked mean of -lp0 over the same tokens, nats.
            progress: 0 at the first iteration of the run, 1 at the last.
            stderr: standard error of `entropy` between prompts, nats; NaN or None where unknown.
            response_mean: mean over responses of the mean entropy of their tokens, nats.
        """
        given = {
            "entropy": entropy, "nll": nll, "progress": progress, "response_mean": response_mean,
            "stderr": None if stderr is not None and math.isnan(stderr) else stderr,
        }  # fmt: skip
        seen = Observation(**{name: float(x) for name, x in given.items() if x is not None})
        for name, value in vars(seen).items():
            if value is not None and not math.isfinite(value):
                raise ValueError(f"Objective.observe: {name} is {value}; need a number")
        if seen.progress is not None and not 0 <= seen.progress <= 1:
            raise ValueError(f"Objective.observe: progress is {progress}; it goes from 0 to 1")
        if any(method.schedules for method in self.methods):
            self._at(seen.need("progress", "Objective.observe: a schedule"))
            for i, method in enumerate(self.methods):
                if method.schedules and isinstance(method, Controlled):
                    self.states[i] = method.init()  # a fixed coefficient
        self.states = [method.observe(state, seen) for _, method, state in self.chain()]

    def _at(self, progress: float) -> None:
        self._progress = progress
        self.methods = tuple(at(method, progress) for method in self.methods)

    def observe_figures(self, figures: Mapping[str, float], progress: float | None = None) -> None:
        """`observe` the metrics of a rollout batch, under the names of `core.rollouts.describe`.

        Only `entropy/exact` is always needed. A batch without trained tokens (entropy NaN) moves
        no controller.
        """
        if figures.get("rollout/tokens") == 0 or math.isnan(figures["entropy/exact"]):
            return
        names = ("nll", "stderr", "response_mean")
        signals = {name: figures.get(f"entropy/{name}") for name in names}
        self.observe(entropy=figures["entropy/exact"], progress=progress, **signals)

    def metrics(self) -> dict[str, float]:
        """The controllers' current metrics and the scheduled parameters: `control/...`."""
        out: dict[str, float] = {
            f"control/{name}_{key}": float(getattr(method, key))
            for name, method, _ in self.chain()
            for key in method.schedules
        }
        for name, method, state in self.chain():
            for key, value in method.metrics(state).items():
                group, _, rest = key.partition("/")
                # two methods may name a coefficient alike: the later key gets the method's name
                clash = key in out and out[key] != value
                out[f"{group}/{name}_{rest}" if clash else key] = value
        return out

    def describe(self) -> dict[str, Any]:
        """The whole objective as plain data: estimator, aggregation, methods, parameters."""
        chain = zip(self.names, self.methods, strict=True)
        other = {} if self.conventions == "entrostat" else {"conventions": self.conventions}
        return other | {
            "advantage": self.advantage,
            "aggregation": self.aggregation,
            "max_length": self.max_length,
            "methods": [
                {"name": name, **dataclasses.asdict(method)}
                | {key: text for key, (text, _) in method.schedules.items()}
                for name, method in chain
            ],
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain data (JSON) that `load_state_dict` restores exactly."""
        return {
            "objective": self.describe(),
            "states": [None if s is None else s.to_dict() for s in self.states],
        } | ({} if self._progress is None else {"progress": self._progress})

    def load_state_dict(self, data: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.states = restored(data, self.describe(), self.names, self.methods)
        if "progress" in data:
            self._at(data["progress"])

    def chain(self) -> Iterable[tuple[str, Method, Any]]:
        """(name, method, state) of each method, in order."""
        return zip(self.names, self.methods, self.states, strict=True)

    def returned(self, value: Data, given: Data, batch: TokenBatch, hook: str) -> Data:
        """A hook's return value, validated at the hook's first call only."""
        if hook in self._validated:
            return value
        self._validated.add(hook)
        return returned(value, given, batch, hook)

    @staticmethod
    def check_fields(name: str, method: Method, batch: TokenBatch) -> None:
        """Raise if the batch lacks a field that the method needs."""
        for need in method.required():
            batch.need(need, f"`{name}`")
