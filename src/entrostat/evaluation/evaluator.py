"""The lab as an engine of `entrostat eval`: load, sample and measure a policy.

Shapes: B responses, T tokens at most, D the model's width.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..config import Sampling, TrainConfig
from ..data.generation import Answers, answer
from ..data.prompts import (
    encode,
    new_tokens,
    stop_strings,
    turns_of,
    uses_chat,
    warn_of_lost,
)
from ..data.seeds import uniform
from ..errors import RunStopped
from ..logs.lines import finite
from ..models.capabilities import is_small
from ..models.hardware import choose_precision, choose_threads
from ..models.loading import load_policy
from ..models.policy import Policy
from ..models.rollout import Sequences
from ..runs import checkpoint as checkpoints
from .in_training import prompt_entropies
from .models import Answered, Asked, EvaluatedModel, ProblemSet
from .settings import Decoding, EvalConfig

Say = Callable[[str], None]


def load(subject: EvaluatedModel, config: EvalConfig, say: Say) -> Policy:
    """Load the policy to evaluate; writes its precision and threads into `config`."""
    own = _settings(config, subject.config)
    own.model = subject.model
    choose_precision(own, say)
    if subject.checkpoint is None:
        own.lora.rank = 0  # the adapters of a final model are merged
        policy = load_policy(own)
    else:
        try:
            saved = checkpoints.read(subject.checkpoint)
            policy = load_policy(own)
            checkpoints.restore_weights(saved, policy.trained())
        except RunStopped as error:
            raise ValueError(f"{subject.spec!r}: {error}") from None
    choose_threads(own, policy, is_small(policy.model), say)
    config.precision, config.threads = own.precision, own.threads
    return policy


def fingerprint(policy: Policy) -> str:
    """SHA-256 over a few thousand values of every tensor, to identify a policy."""
    digest = hashlib.sha256()
    for name, tensor in sorted(policy.model.state_dict().items()):
        flat = tensor.detach().flatten()
        some = flat[:: max(1, len(flat) // 4096)].float().cpu().numpy()
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + some.tobytes())
    return digest.hexdigest()


class SetSettings:
    """Resolves a sampler's settings for a set: the run's, overridden by those given."""

    def __init__(
        self, tokenizer: Any, config: EvalConfig, subject: EvaluatedModel | None = None
    ) -> None:
        self._tokenizer, self._config = tokenizer, config
        self._shared = _settings(config, None if subject is None else subject.config)
        self._shared.model = "" if subject is None else subject.model

    def settings(self, one: ProblemSet, decoding: Decoding) -> dict[str, Any]:
        own = self._of(one, decoding)
        return {
            "max_new_tokens": new_tokens(one.task, own, one.split),
            "stop": list(stop_strings(one.task, own)),
            "chat": uses_chat(self._tokenizer, own),
            "system": own.prompt.system,
            "precision": self._config.precision,
        }

    def _of(self, one: ProblemSet, decoding: Decoding) -> TrainConfig:
        """Settings for one set; length and stop default to the run's only on the run's own task."""
        own, config = copy.deepcopy(self._shared), self._config
        trained = own.sampling if one.task_name == own.task["name"] else Sampling()
        own.task = {"name": one.task_name}
        own.sampling = replace(
            own.sampling, temperature=1.0 if decoding.greedy else decoding.temperature,
            top_p=decoding.top_p, max_new_tokens=decoding.max_new_tokens or trained.max_new_tokens,
            stop=trained.stop if config.stop is None else config.stop, batch=config.batch,
        )  # fmt: skip
        if own.prompt.chat is None:
            own.prompt.chat = getattr(one.task, "chat", None)
        return own


class LabSampler(SetSettings):
    """Samples with a key-value cache, then measures the samples in separate forward passes.

    `subject` is the evaluated model, for its run's prompt settings and for messages. `base` is a
    model whose entropy on the prompts is measured as well.
    """

    def __init__(
        self, policy: Policy, config: EvalConfig, subject: EvaluatedModel | None = None,
        base: Policy | None = None,
    ) -> None:  # fmt: skip
        super().__init__(policy.tokenizer, config, subject)
        self._policy, self._base = policy, base

    def identity(self) -> dict[str, Any]:
        return {"weights": fingerprint(self._policy)}

    def __call__(self, asked: Asked, on_tokens: Callable[[int], None]) -> list[Answered]:
        one, k, policy = asked.set, asked.decoding.k, self._policy
        own = self._of(one, asked.decoding)
        new = new_tokens(one.task, own, one.split)
        try:
            prompts = encode(policy, own, asked.examples, new)
        except RunStopped as error:  # `entrostat eval` names the flag differently
            words = str(error).replace("--sampling.max-new-tokens", "--max-new-tokens")
            raise RunStopped(f"{one.name}: {words}") from error
        if asked.problems[0] == 0:  # once for each set
            warn_of_lost(policy, own, asked.examples, prompts)
        numbers = None
        if not asked.decoding.greedy:
            most = new * turns_of(one.task, one.split)
            each = [uniform(asked.seed, one.name, i, k, most) for i in asked.problems]
            numbers = torch.cat(each).to(policy.device)
        said = answer(
            policy, own, one.task, one.split, asked.examples, prompts, rollouts=k,
            generator=numbers, training=False, where=one.name, on_progress=on_tokens,
        )  # fmt: skip
        of_prompts = finite(prompt_entropies(policy, prompts, own).tolist())
        of_base: list[float | None] = [None] * len(prompts)
        if self._base is not None:
            of_base = finite(prompt_entropies(self._base, prompts, own).tolist())
        return self._answered(said, own.sampling.temperature, k, of_prompts, of_base)

    def _answered(
        self, said: Answers, temperature: float, k: int, of_prompts: list[float | None],
        of_base: list[float | None],
    ) -> list[Answered]:  # fmt: skip
        sequences, config = said.sequences, self._config
        stats = self._policy.measure(sequences, temperature, config.micro_batch)
        tokens = sequences.mask.sum(-1)
        logp, entropy = (
            (x.double().sum(-1) / tokens.clamp(min=1)).tolist() for x in (stats.logp, stats.entropy)
        )
        vectors, distance = None, config.cluster_distance
        if distance and k > 1:
            vectors = mean_pooled(self._policy, sequences, config.micro_batch)
        answered = []
        for i, own in enumerate(of_prompts):
            rows = slice(i * k, (i + 1) * k)
            one = Answered(
                said.texts[rows], tokens[rows].tolist(), sequences.finished[rows].tolist(),
                logp[rows], entropy[rows], prompt_entropy=own,
                clusters=None if vectors is None else clusters(vectors[rows], distance),
                base_prompt_entropy=of_base[i],
            )  # fmt: skip
            if said.judged is not None:
                rewards, reasons = zip(*said.judged[rows], strict=True)
                one = replace(one, scores=list(rewards), failed=sum(map(bool, reasons)))
            answered.append(one)
        return answered


@torch.no_grad()
def mean_pooled(policy: Policy, sequences: Sequences, micro_batch: int) -> Tensor:
    """Mean of the last hidden states at a response's own tokens: [B, D] float32, CPU.

    The last token is left out, because the model is not run on it. A response of one token is
    represented by the last token of its prompt.
    """
    rows = torch.arange(len(sequences.mask), device=sequences.mask.device)
    found = []
    for part in rows.split(micro_batch):
        own = sequences[part]
        hidden = policy.hidden(own).float()  # at the positions that predict each response token
        owner = own.mask.nonzero()[:, 0]
        count = own.mask.sum(-1)
        start = torch.ones_like(owner, dtype=torch.bool)
        start[1:] = owner[1:] != owner[:-1]
        keep = (~start | (count[owner] == 1)).float()
        total = hidden.new_zeros(len(part), hidden.shape[-1])
        total.index_add_(0, owner, hidden * keep[:, None])
        found.append((total / (count - 1).clamp(min=1)[:, None]).cpu())
    return torch.cat(found)


def clusters(embeddings: ArrayLike, distance: float) -> list[int]:
    """Cluster responses by their embeddings [k, D]; returns k labels, numbered by first appearance.

    Agglomerative clustering with average linkage: two clusters are merged while the mean cosine
    distance of their members is at most `distance`, 0 to 2. A row of zeros has distance 1.

    Example:
        >>> clusters([[1, 0], [0, 1], [1, 0.01]], 0.1)
        [0, 1, 0]
    """
    x = np.asarray(embeddings, dtype=float)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise ValueError(f"clusters: embeddings must be finite, [k, D], got the shape {x.shape}")
    if len(x) < 2:
        return [0] * len(x)
    from scipy.cluster.hierarchy import fcluster, linkage

    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(float).tiny)
    apart = np.clip(1 - unit @ unit.T, 0, 2)[np.triu_indices(len(x), 1)]
    found = fcluster(linkage(apart, "average"), distance, "distance").tolist()
    order = {label: i for i, label in enumerate(dict.fromkeys(found))}
    return [order[label] for label in found]


def _settings(config: EvalConfig, run: TrainConfig | None) -> TrainConfig:
    own = TrainConfig() if run is None else copy.deepcopy(run)
    own.device, own.precision, own.threads = config.device, config.precision, config.threads
    own.gradient_checkpointing = False
    own.optim.micro_batch = config.micro_batch
    own.scoring = config.scoring
    if config.prompt_chat is not None:
        own.prompt.chat = config.prompt_chat
    if config.prompt_system is not None:
        own.prompt.system = config.prompt_system
    return own
