"""A rollout engine over transformers, on the CPU: `actor_rollout_ref.rollout.name=hf`.

What vLLM is to veRL, as small as a test needs it: a replica is one Ray actor, which samples what
the agent loops ask for, and a training worker hands its weights to the actor of its own rank. veRL
imports this in each of its processes, by VERL_USE_EXTERNAL_MODULES.

The negative control of the weight updates: where the environment has ENTROSTAT_TEST_LAST_UPDATE=N,
the weights of later steps are not handed on.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import ray
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME, LAST_UPDATE = "hf", "ENTROSTAT_TEST_LAST_UPDATE"
# sampling parameters that are obeyed, and those of which only one value is
_OBEYED = {"temperature", "max_tokens", "stop", "include_stop_str_in_output", "logprobs"}
_FIXED = {"top_p": (1.0,), "top_k": (-1, 0), "repetition_penalty": (1.0,)}


@dataclass(eq=False)
class _Request:
    prompt: list[int]
    params: dict[str, Any]
    answer: asyncio.Future[TokenOutput]


class Server:
    """One replica. Requests that are waiting at the same time are sampled together."""

    def __init__(self, path: str, seed: int, response_length: int, batch: int) -> None:
        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        eos = self.model.generation_config.eos_token_id
        self.eos = set(eos if isinstance(eos, list) else [eos])
        self.generator = torch.Generator().manual_seed(seed)
        self.response_length, self.batch = response_length, batch
        self.step: int | None = None
        self.waiting: list[_Request] = []
        self.serving: asyncio.Task[None] | None = None

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """One response, at most `response_length` tokens, with its end-of-sequence token.

        Raises:
            ValueError: a sampling parameter that would not be obeyed.
        """
        for name, value in sampling_params.items():
            if name not in _OBEYED and value not in _FIXED.get(name, ()):
                raise ValueError(f"rollout_engine: sampling parameter {name}={value!r}")
        request = _Request(
            list(prompt_ids), sampling_params, asyncio.get_running_loop().create_future()
        )
        self.waiting.append(request)
        if self.serving is None:
            self.serving = asyncio.create_task(self._serve())
        return await request.answer

    async def _serve(self) -> None:
        await asyncio.sleep(0.1)  # agent loops send one request a rollout
        try:
            while self.waiting:
                params = self.waiting[0].params  # validation samples otherwise
                now = [r for r in self.waiting if r.params == params][: self.batch]
                self.waiting = [r for r in self.waiting if r not in now]
                try:
                    rows = await asyncio.to_thread(self.sample, [r.prompt for r in now], params)
                except Exception as error:  # every one of them is waited for
                    for request in now:
                        request.answer.set_exception(error)
                    continue
                for request, (tokens, logps) in zip(now, rows, strict=True):
                    output = TokenOutput(
                        token_ids=tokens, log_probs=logps, stop_reason="completed",
                        extra_fields={"global_steps": self.step},
                    )  # fmt: skip
                    request.answer.set_result(output)
        finally:
            self.serving = None

    @torch.no_grad()
    def sample(
        self, prompts: list[list[int]], params: dict[str, Any]
    ) -> list[tuple[list[int], list[float]]]:
        """Tokens of each prompt's response, and their log-probs at the temperature (nats)."""
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        temperature, stops = params.get("temperature", 1.0), params.get("stop") or ()
        rows: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
        alive, cache = list(range(len(prompts))), None
        for _ in range(params.get("max_tokens") or self.response_length):
            places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            out = self.model(
                input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache,
                use_cache=True, logits_to_keep=1,
            )  # fmt: skip
            cache = out.past_key_values
            logp = (out.logits[:, -1] / (temperature or 1.0)).log_softmax(-1)
            ids = (
                torch.multinomial(logp.exp(), 1, generator=self.generator)
                if temperature
                else logp.argmax(-1, keepdim=True)
            )
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
            for i in alive:
                rows[i][0].append(int(ids[i]))
                rows[i][1].append(float(logp[i, ids[i]]))
            alive = [i for i in alive if not self._ended(rows[i][0], stops)]
            if not alive:
                break
        return rows

    def _ended(self, tokens: list[int], stops: Any) -> bool:
        return tokens[-1] in self.eos or (
            bool(stops) and any(stop in self.tokenizer.decode(tokens) for stop in stops)
        )

    async def update(self, weights: dict[str, torch.Tensor], step: int | None) -> None:
        """Take the policy's weights, all of them by name, after `step` optimizer steps."""
        if weights:
            self.model.load_state_dict(weights)
        self.step = step

    async def sleep(self) -> None:
        """Nothing to give back: the weights stay."""


def _server(rank: int) -> str:
    return f"hf_server_{rank}"


class Replica(RolloutReplica):
    """In the driver: starts the server."""

    async def launch_servers(self) -> None:
        config, name = self.config, _server(self.replica_rank)
        remote = ray.remote(Server).options(
            name=name, max_concurrency=self.max_concurrency, num_cpus=0
        )
        server = remote.remote(
            self.model_config.path, config.seed + self.replica_rank,
            config.response_length, config.max_num_seqs,
        )  # fmt: skip
        self.servers, self._server_handle, self._server_address = [server], server, name


class ServerAdapter(BaseRollout):
    """In a training worker: hands its weights to the server of its rank."""

    async def resume(self, tags: list[str]) -> None:
        return None

    async def release(self) -> None:
        return None

    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        assert wire_format == "named_tensors", wire_format
        whole = {name: tensor.detach().cpu() for name, tensor in weights}  # gathered over ranks
        if (global_steps or 0) > float(os.environ.get(LAST_UPDATE, "inf")):
            whole = {}
        server = ray.get_actor(_server(int(os.environ["RANK"])))
        await server.update.remote(whole, global_steps)


RolloutReplicaRegistry.register(NAME, lambda: Replica)
# of the workers' half veRL has no public registry
_ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.{ServerAdapter.__name__}"
