"""vLLM as an engine of `entrostat eval`: fast, but without entropies.

vLLM uses its own random numbers, seeded per problem, so its samples differ from the lab's.
Log-probs are vLLM's: at temperature 1, before top-p (`logprobs_mode` "raw_logprobs").
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..models.policy import token_ids
from .evaluator import SetSettings
from .models import Answered, Asked, EvaluatedModel
from .settings import EvalConfig

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "auto": "auto"}


class VllmSampler(SetSettings):
    """Samples with a `vllm.LLM`, loaded from a directory or by name."""

    def __init__(
        self, engine: Any, config: EvalConfig, subject: EvaluatedModel | None = None,
        weights: str = "",
    ) -> None:  # fmt: skip
        super().__init__(engine.get_tokenizer(), config, subject)
        self._engine, self._weights = engine, weights

    def identity(self) -> dict[str, Any]:
        return weights_of(self._weights)

    @classmethod
    def of(
        cls, subject: EvaluatedModel, config: EvalConfig, say: Callable[[str], None]
    ) -> VllmSampler:
        if subject.checkpoint is not None:
            raise ValueError(
                f"{subject.spec!r}: vLLM reads whole models, and a checkpoint holds weights alone; "
                "leave out --engine vllm, or evaluate the run's final model"
            )
        if config.base:
            raise ValueError("--base needs entropies, which vLLM does not measure")
        try:
            from vllm import LLM
        except ImportError:
            raise ValueError("--engine vllm takes vLLM: pip install vllm") from None
        from ..model_files import find

        say(f"vLLM loads {subject.spec}")
        model = find(subject.model)
        engine = LLM(
            model=model, dtype=PRECISIONS[config.precision], seed=config.seed,
            trust_remote_code=False,
        )  # fmt: skip
        return cls(engine, config, subject, model)

    def __call__(self, asked: Asked, on_tokens: Callable[[int], None]) -> list[Answered]:
        one, decoding = asked.set, asked.decoding
        if hasattr(one.task, "environment"):
            raise ValueError(
                f"set {one.name!r} takes turns with an environment, which --engine vllm cannot; "
                "leave it out"
            )
        from vllm import SamplingParams

        own = self.settings(one, decoding)
        parameters = [
            SamplingParams(
                n=decoding.k,
                temperature=0.0 if decoding.greedy else decoding.temperature,
                top_p=decoding.top_p,
                max_tokens=own["max_new_tokens"],
                stop=own["stop"],
                seed=_seed(asked.seed, one.name, problem),
                logprobs=0,
            )
            for problem in asked.problems
        ]
        tokenizer, system = self._tokenizer, own["system"] if own["chat"] else ""
        ids = [
            token_ids(tokenizer, [tokenizer.eos_token_id], example.prompt, own["chat"], system)
            for example in asked.examples
        ]
        prompts = [{"prompt_token_ids": each} for each in ids]
        outputs = self._engine.generate(prompts, parameters, use_tqdm=False)
        answered = [_answered(output.outputs) for output in outputs]
        on_tokens(sum(sum(a.tokens) for a in answered))
        return answered


def _answered(outputs: list[Any]) -> Answered:
    tokens = [len(o.token_ids) for o in outputs]
    known = all(o.cumulative_logprob is not None for o in outputs)
    return Answered(
        [o.text for o in outputs],
        tokens,
        [o.finish_reason == "stop" for o in outputs],
        [o.cumulative_logprob / max(1, len(o.token_ids)) for o in outputs] if known else None,
    )


def _seed(seed: int, name: str, problem: int) -> int:
    digest = hashlib.sha256(f"{seed}/{name}/{problem}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 1


_BLOCKS, _BLOCK = 64, 1 << 16  # sampled per file: training changes all weights, so a part suffices


def weights_of(model: str) -> dict[str, Any]:
    """SHA-256 over parts of a model's weight files, to identify it.

    Empty for a name that vLLM resolves itself.
    """
    files = sorted(Path(model).glob("*.safetensors")) if Path(model).is_dir() else []
    if not files:
        return {}
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with open(path, "rb") as file:
            for place in range(_BLOCKS):
                file.seek(place * max(size - _BLOCK, 0) // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK))
    return {"weights": digest.hexdigest()}
