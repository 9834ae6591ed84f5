"""Checks of a method's class at registration and of its hooks' return values."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._names import unknown
from ..core.batch import Terms, TokenBatch
from .base import HOSTS, Method

HOOKS = [name for name, hook in vars(Method).items() if inspect.isfunction(hook) and name[0] != "_"]
_ALWAYS = ("advantage", "weight", "ratio_min", "ratio_max")
_PER_TOKEN = (*_ALWAYS, "frozen", "abs_kl", "entropy", "ref_kl", "soft")
_OPEN = ("ratio_min", "ratio_max")  # infinite where nothing is clipped

Data = TypeVar("Data", TokenBatch, Terms)


def check_class(who: str, cls: type[Method], bases: Mapping[str, Any]) -> None:
    """Raise a TypeError for a class that would fail or behave differently than declared."""
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise TypeError(f"{who}: {cls!r} must derive from entrostat.Method")
    settings = cls.__dict__.get("__dataclass_params__")
    if settings is None or not settings.frozen:
        raise TypeError(f"{who}: {cls.__name__} must be decorated with @dataclass(frozen=True)")
    for f in dataclasses.fields(cls):
        if hasattr(Method, f.name):
            raise TypeError(
                f"{who}: {f.name!r} is annotated, which makes a hyperparameter of it; write "
                f"`{f.name} = ...`, or annotate it as ClassVar"
            )
        if f.default is dataclasses.MISSING:
            raise TypeError(f"{who}: parameter {f.name!r} needs a default")
    if not (cls.__doc__ or "").strip() or (cls.__doc__ or "").startswith(f"{cls.__name__}("):
        raise TypeError(f"{who}: {cls.__name__} needs a docstring: a line says what it does")
    _check_attributes(who, cls, bases)
    _check_hooks(who, cls)


def _check_attributes(who: str, cls: type[Method], bases: Mapping[str, Any]) -> None:
    for attribute, known, what in (
        ("needs", list(TokenBatch.__dataclass_fields__), "field of TokenBatch"),
        ("hosts", HOSTS, "host"),
    ):
        value = getattr(cls, attribute)
        if not isinstance(value, tuple):
            raise TypeError(f"{who}: {attribute} must be a tuple of names, got {value!r}")
        for name in value:
            if name not in known:
                raise TypeError(f"{who}: {attribute} {name!r}, no {what} ({', '.join(known)})")
    for hook, need in (("resamples", "tempered"), ("influence_sample", "influence")):
        if (getattr(cls, hook) is not getattr(Method, hook)) != (need in cls.needs):
            raise TypeError(
                f"{who}: {hook} and needs = ({need!r},) belong together: hosts that cannot give "
                "the one refuse the other"
            )
    if cls.kind not in ("surrogate", "intervention"):
        raise TypeError(f"{who}: kind must be 'surrogate' or 'intervention', got {cls.kind!r}")
    if cls.base not in bases:
        raise TypeError(f"{who}: base: {unknown('recipe or surrogate', cls.base, bases)}")
    if cls.actuator is not None and cls.actuator[1] not in (None, *cls.parameters()):
        raise TypeError(f"{who}: actuator names {cls.actuator[1]!r}, which is no parameter")


def _check_hooks(who: str, cls: type[Method]) -> None:
    made = object.__new__(cls)  # binds any kind of method; no parameter is checked
    for hook in HOOKS:
        wanted = list(inspect.signature(getattr(Method(), hook)).parameters)
        given = inspect.signature(getattr(made, hook))
        try:
            given.bind(*wanted)
        except TypeError:
            listed = ", ".join(wanted)
            raise TypeError(f"{who}: {hook} must take ({listed}), it takes {given}") from None


def returned(value: Data, given: Data, batch: TokenBatch, hook: str) -> Data:
    """The return value of a hook ("method.hook") that edits `given`, if it is valid.

    Raises on another type, tensors of other shapes, or a non-finite number at a token although all
    inputs are finite.
    """
    if not isinstance(value, type(given)):
        raise ValueError(
            f"{hook} returned {type(value).__name__}; return the {type(given).__name__} it was "
            "given, or an edited copy"
        )
    terms = isinstance(given, Terms)
    for name in _PER_TOKEN if terms else ("rewards", "advantages"):
        part = getattr(value, name)
        if part is getattr(given, name) or (part is None and name not in _ALWAYS):
            continue
        if terms:
            _check_part(name, part, batch, hook)
        _check_finite(name, part, batch, hook)
    return value


def _check_part(name: str, part: Any, batch: TokenBatch, hook: str) -> None:
    shape = list(batch.mask.shape)
    if not isinstance(part, Tensor) or list(part.shape) != shape:
        got = list(part.shape) if isinstance(part, Tensor) else repr(part)
        raise ValueError(f"{hook}: {name} must be {shape}, got {got}")
    if (part.dtype == torch.bool) != (name == "frozen"):
        kind = "bool" if name == "frozen" else "numbers"
        raise ValueError(f"{hook}: {name} must be {kind}, got {part.dtype}")


def _check_finite(name: str, part: Tensor, batch: TokenBatch, hook: str) -> None:
    """Raise on NaN, and on infinities except in clip bounds, at mask 1.

    Skipped if an input is not finite; the trainer reports divergence.
    """
    mask = batch.mask if part.ndim == 2 else batch.mask.any(-1)
    bad = (part.isnan() if name in _OPEN else ~part.isfinite()) & mask
    if not bad.any():
        return
    read = [x for x in vars(batch).values() if isinstance(x, Tensor)]
    if all(bool(x.isfinite().all()) for x in read):
        raise ValueError(
            f"{hook}: {name} is {part[bad][0].item()} at {int(bad.sum())} of {int(mask.sum())} "
            "places, though all that it read is finite; look for a division by 0 or its logarithm"
        )
