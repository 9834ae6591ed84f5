"""Rollouts of one iteration, token by token.

`rollouts/000012.safetensors` holds one iteration's rollouts without padding: the concatenated
values of all tokens, and the offset of each rollout. `load_rollouts` reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .files import dump_files, replacing


@dataclass(repr=False)
class Rollouts:
    """One iteration's rollouts: B rollouts, n tokens in all.

    Attributes:
        iteration: its number.
        prompts: B texts.
        completions: B texts, without eos.
        rewards: [B] float32.
        group: [B] int32, which prompt of the iteration.
        finished: [B] bool, whether the policy (eos, a stop) or the environment ended the rollout.
        trained: [B] bool, False where the group had only zero advantages and was dropped.
        start: [B + 1] int64; rollout i has the tokens start[i] to start[i + 1].
        tokens: [n] int32 ids.
        logp: [n] float32, under the policy that the iteration started with.
        sampler_logp: [n] float32, as the sampler computed it.
        entropy: [n] float32, nats, exact.
        advantage: [n] float32, after the methods' edits; 0 where not trained.
        pieces: text of each token id that occurs.
        change: [n] float32, nats: entropy at the token's state after the iteration's updates minus
            before; None unless the iteration was analysed.
        influence: [n] float32, nats: effect of the token's gradient on the batch's mean entropy
            (`dynamics.influence`); None unless the iteration was analysed.
        sampled: [n] bool, False for observation tokens, whose float values are NaN. None if the
            policy sampled every token.

    Rollouts from another trainer's dump have NaN for unknown values, and no tokens if the dump has
    only text.
    """

    iteration: int
    prompts: list[str]
    completions: list[str]
    rewards: Tensor
    group: Tensor
    finished: Tensor
    trained: Tensor
    start: Tensor
    tokens: Tensor
    logp: Tensor
    sampler_logp: Tensor
    entropy: Tensor
    advantage: Tensor
    pieces: dict[int, str]
    change: Tensor | None = None
    influence: Tensor | None = None
    sampled: Tensor | None = None

    def __repr__(self) -> str:
        size = f"rollouts={len(self)}, tokens={len(self.tokens)}"
        return f"Rollouts(iteration={self.iteration}, {size})"

    def __len__(self) -> int:
        """Number of rollouts B."""
        return len(self.completions)

    def rows(self, i: int) -> slice:
        """Slice of rollout `i`'s tokens: `r.entropy[r.rows(3)]`."""
        return slice(int(self.start[i]), int(self.start[i + 1]))


_FLOATS, _INTEGERS = (torch.float32, torch.float64), (torch.int32, torch.int64)
_FLAGS = (torch.bool,)
# axis that each tensor runs over (`check`), and its dtypes
_TENSORS = {
    "rewards": ("rollout", _FLOATS), "group": ("rollout", _INTEGERS), "start": ("edge", _INTEGERS),
    "finished": ("rollout", _FLAGS), "trained": ("rollout", _FLAGS), "tokens": ("token", _INTEGERS),
    "logp": ("token", _FLOATS), "sampler_logp": ("token", _FLOATS), "entropy": ("token", _FLOATS),
    "advantage": ("token", _FLOATS), "change": ("token", _FLOATS), "influence": ("token", _FLOATS),
    "sampled": ("token", _FLAGS),
}  # fmt: skip
_OPTIONAL = ("change", "influence", "sampled")


def save_rollouts(rollouts: Rollouts, directory: Path) -> None:
    """Write `directory/ITERATION.safetensors` atomically."""
    group = rollouts.group.tolist()
    texts = {
        "iteration": rollouts.iteration,
        "prompts": dict(zip(group, rollouts.prompts, strict=True)),
        "completions": rollouts.completions,
        "pieces": rollouts.pieces,
    }
    found = {name: getattr(rollouts, name) for name in _TENSORS}
    tensors = {name: values.contiguous() for name, values in found.items() if values is not None}
    # texts are a tensor of bytes, because a safetensors header may not exceed 100 MB
    data = json.dumps(texts, ensure_ascii=False).encode("utf-8", "surrogatepass")
    tensors["texts"] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    with replacing(directory / f"{rollouts.iteration:06d}.safetensors") as part:
        save_file(tensors, part, metadata={"entrostat": "rollouts"})


def load_rollouts(path: str | Path, iteration: int | None = None) -> Rollouts:
    """Read the rollouts of one iteration.

    Args:
        path: a rollout file, or a run directory.
        iteration: its number, if `path` is a run directory; None loads the last one.

    Raises:
        ValueError: there are no rollouts, or the file is not a rollout file.

    Example:
        >>> r = load_rollouts("runs/demo/grpo", iteration=10)  # doctest: +SKIP
        >>> r.completions[0], r.entropy[r.rows(0)]  # doctest: +SKIP
    """
    path = Path(path)
    if path.is_dir():
        folder = path / "rollouts" if (path / "rollouts").is_dir() else path
        files = dump_files(folder)
        chosen = max(files, default=None) if iteration is None else iteration
        if chosen not in files:
            there = f"{min(files)} to {max(files)}" if files else "none"
            raise ValueError(f"load_rollouts: no iteration {chosen} in {folder} (there: {there})")
        path = files[chosen]
    try:
        with safe_open(path, framework="pt") as file:
            there = {*_TENSORS} - {*_OPTIONAL} | {*_TENSORS} & {*file.keys()}
            tensors = {name: file.get_tensor(name) for name in there}
            data = file.get_tensor("texts").numpy().tobytes()
        texts = json.loads(data.decode("utf-8", "surrogatepass"))
        rollouts = Rollouts(
            iteration=texts["iteration"],
            prompts=[texts["prompts"][str(g)] for g in tensors["group"].tolist()],
            completions=texts["completions"],
            pieces={int(k): v for k, v in texts["pieces"].items()},
            **tensors,
        )
        check(rollouts)
        return rollouts
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError,
            RecursionError) as error:  # fmt: skip
        raise ValueError(f"load_rollouts: {path} is not a rollout file: {error}") from None


def check(r: Rollouts) -> None:
    """Raise if parts of the rollouts do not fit together, as in a damaged or forged file.

    Raises:
        ValueError: names the part.
    """
    texts = [*r.prompts, *r.completions, *r.pieces.values()]
    if type(r.iteration) is not int or not all(type(text) is str for text in texts):
        raise ValueError("its iteration is no whole number, or a text is none")
    if not isinstance(r.completions, list) or len(r.prompts) != len(r.completions):
        raise ValueError("its parts do not fit together: prompts and completions")
    B, n = len(r.completions), r.tokens.numel()
    sizes = {"rollout": B, "edge": B + 1, "token": n}
    for name, (each, types) in _TENSORS.items():
        values = getattr(r, name)
        if values is None and name in _OPTIONAL:
            continue
        if values.shape != (sizes[each],) or values.dtype not in types:
            raise ValueError(f"its parts do not fit together: {name}")
    edges = r.start.tolist()
    if edges[0] != 0 or edges[-1] != n or edges != sorted(edges):
        raise ValueError("its parts do not fit together: start")
    if n and not 0 <= int(r.tokens.min()) <= int(r.tokens.max()) < 2**31:
        raise ValueError("its tokens are no ids")
