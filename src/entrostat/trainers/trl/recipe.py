"""TRL's trainer for a recipe: prompts, rewards and learning rates follow the lab.

TRL's data set holds indices of the run's draws. Every process draws the same prompts when their
iteration begins, and TRL gets the lab's token ids. Rewards come from the lab's scorer. Weight decay
and learning rates follow the lab's. The random stream of an iteration is seeded from (seed,
iteration, process), so a resumed run repeats it.

Shapes: B rollouts of an iteration, W processes: B / W of this one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback

from ...agents import is_multi_turn
from ...core.rollouts import of_kinds
from ...data.generation import Answers
from ...data.seeds import stream_seed
from ...models.stops import cut
from ...runs.progress import Progress
from ...runs.run_writer import Timer
from ...runs.schedule import learning_rate_at
from ...tasks import Example
from .iteration import Scored
from .record import EachIteration, Record
from .state import Recipe
from .trainer import EntropyGRPOTrainer
from .turns import rollouts


def _everywhere(failed: int, answers: int) -> tuple[int, int]:
    counts = gather_object([(failed, answers)])
    return sum(f for f, _ in counts), sum(n for _, n in counts)


class RecipeTrainer(EntropyGRPOTrainer):
    """`EntropyGRPOTrainer` for a recipe; `args` is the `GRPOConfig` made from it."""

    _alone = True

    def __init__(self, recipe: Recipe, record: Record, progress: Progress, args: Any) -> None:
        self.recipe, self.progress = recipe, progress
        self._clock, self._norms, self._failed = Timer(), [], 0
        self.answers: Answers | None = None  # the newest rollouts of a multi-turn task
        self._played: dict[str, float] | None = None
        config, policy = recipe.config, recipe.policy
        if policy.tokenizer.pad_token_id != policy.pad:  # none, or not the model's
            policy.tokenizer.pad_token = policy.tokenizer.convert_ids_to_tokens(policy.pad)
        places = [str(i) for i in range(config.iterations * config.sampling.prompts)]
        super().__init__(
            policy.model, self._rewards, args, objective=recipe.objective, stop=recipe.stop,
            dump_rollouts=record, analyze_every=config.analyze.every,
            redraws=config.sampling.redraws,
            train_dataset=Dataset.from_dict({"prompt": places}), processing_class=policy.tokenizer,
        )  # fmt: skip
        assert self._steps is not None
        self._steps.whole_groups = bool(config.optim.whole_groups)
        self._steps.shuffled_epochs = True  # as in the lab
        if is_multi_turn(recipe.task):  # set here: the argument warns of being experimental
            self.rollout_func = rollouts
        recipe.scorer.everywhere = _everywhere
        self.remove_callback(PrinterCallback)
        self.add_callback(EachIteration(self, record))

    def _send_telemetry(self) -> None:
        """Disabled: a user of a recipe has not opted in to TRL's telemetry."""

    # ------------------------------------------------------------------ rollouts

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._clock, self._norms, self._failed, self._played = Timer(), [], 0, None
        iteration, rank = self._iteration, self.accelerator.process_index
        seed = stream_seed(self.recipe.config.seed, iteration, "sample")
        torch.manual_seed((seed + rank) % 2**63)
        output = super()._generate_and_score_completions(inputs)
        assert self._scored is not None
        scores, rows = self._scored
        kinds = [one.data.get("kind") for one in self._examples(rows)]
        self._record(of_kinds(scores[:, 0], gather_object(kinds)))
        self._record({"reward/failed": float(sum(gather_object([self._failed])))})
        if self._played is not None:  # all processes have equally many rollouts
            every = gather_object([self._played])
            self._record({key: sum(f[key] for f in every) / len(every) for key in every[0]})
        self._clock.lap("measure")
        return output

    @property
    def _iteration(self) -> int:
        return self.state.global_step // self.updates + 1

    def _tokenize_prompts(self, prompts: list[str]) -> Any:
        return self.recipe.token_ids(prompts), None, {}

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        # vLLM does its own batching
        sampling = self.recipe.config.sampling
        whole = max(1, sampling.batch // sampling.rollouts) * sampling.rollouts
        at_once = len(prompt_ids) if self.use_vllm else whole
        completions, logprobs = [], None
        for first in range(0, len(prompt_ids), at_once):
            some, logprobs = super()._generate_single_turn(
                prompt_ids[first : first + at_once], *args, **kwargs
            )
            completions += some
            self.progress.tokens(sum(map(len, some)))
        self._clock.lap("sample")
        return completions, logprobs

    def _rewards(
        self, prompts: list[str], completion_ids: list[list[int]], **_: Any
    ) -> list[float]:
        self._clock.lap("measure")
        texts, _ended = self._said(completion_ids)
        judged = None if self.answers is None else self.answers.judged
        examples = self.recipe.examples(prompts)
        rewards = self.recipe.scorer(texts, examples, self._iteration, judged)
        self._failed += self.recipe.scorer.failed
        if self.answers is not None and self._played is None:  # of the first draw, as in the lab
            self._played = self.answers.figures
        self._clock.lap("score")
        return rewards.tolist()

    def _said(self, completions: list[list[int]]) -> tuple[list[str], list[bool]]:
        """As in the lab: text before a stop; an environment may end a multi-turn rollout."""
        if self.answers is not None:
            return self.answers.texts, self.answers.sequences.finished.tolist()
        texts = [cut(text, self.recipe.stop) for text in self.recipe.policy.texts(completions)]
        return texts, super()._said(completions)[1]

    def _examples(self, rows: list[Scored]) -> list[Example]:
        return self.recipe.examples([one.row["prompt"] for one in rows])

    def _prompts(self, output: dict[str, Any], rows: list[Scored]) -> list[str]:
        return [example.prompt for example in self._examples(rows)]

    def other_rows(self, draw: int, count: int) -> list[dict[str, Any]]:
        # the lab's draws, split over processes in rank order
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        places = self.recipe.others(self._iteration, draw, count * world)
        return [{"prompt": place} for place in places[rank * count : (rank + 1) * count]]

    # ------------------------------------------------------------------ updates

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        # all parameters, as in the lab; transformers excludes norms and biases
        return [name for name, _ in model.named_parameters()]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        # the lab's curve (`runs/schedule.py`), whose warm-up starts above 0
        if self.lr_scheduler is None:
            config = self.recipe.config
            assert config.optim.lr is not None
            peak = config.optim.lr
            self.lr_scheduler = LambdaLR(
                self.optimizer if optimizer is None else optimizer,
                lambda update: learning_rate_at(config, update, update) / peak,
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | float | None = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self._norms.append(float(norm))
        return norm

    def figures(self, iteration: int, tokens: float) -> dict[str, float]:
        """Metrics of an iteration of `tokens` tokens after its updates, without the loss's."""
        analysed = 0.0 if self._analyst is None else self._analyst.seconds
        self._clock.lap("update", without=analysed)
        last = iteration * self.updates - 1
        norms = [norm for norm in self._norms if math.isfinite(norm)]
        return {
            "optim/updates": self.updates,
            "optim/lr": learning_rate_at(self.recipe.config, last, last),
            **({"grad/norm": sum(norms) / len(norms)} if norms else {}),
            **self._clock.figures(tokens),
        }
