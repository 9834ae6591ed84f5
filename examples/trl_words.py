"""GRPO with TRL on `words`, with and without a held entropy: the story of docs/story.md.

    entrostat model smollm2
    python examples/trl_words.py --output runs/trl_grpo
    entrostat diagnose runs/trl_grpo
    python examples/trl_words.py --output runs/trl_held --held
    entrostat report runs/trl_grpo runs/trl_held --output runs/trl.html

SmolLM2-135M is asked for a word that starts with a letter. The first run is TRL's own GRPOTrainer
as one writes it; the second has the lines that `entrostat diagnose` gives for the first.
"""

from __future__ import annotations

import argparse

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from entrostat import make_task
from entrostat.model_files import find

GROUPS, ROLLOUTS = 4, 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", required=True)
    parser.add_argument("--held", action="store_true", help="with the lines of the diagnosis")
    parser.add_argument("--iterations", type=int, default=30)
    given = parser.parse_args()

    task = make_task("words")
    examples = [task.example(index, "test") for index in range(task.size("test") or 0)]
    by_prompt = {example.prompt: example for example in examples}

    def reward(prompts: list[str], completions: list[str], **_: object) -> list[float]:
        return [task.score(c, by_prompt[p]) for p, c in zip(prompts, completions, strict=True)]

    model = str(find("smollm2"))
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(tokenizer.encode("\n")[0])  # ends a word
    args = GRPOConfig(
        given.output, use_cpu=True, bf16=False, gradient_checkpointing=False, seed=0,
        per_device_train_batch_size=GROUPS * ROLLOUTS // 2, steps_per_generation=2,
        num_generations=ROLLOUTS, max_completion_length=8, learning_rate=2e-5,
        lr_scheduler_type="constant", max_steps=2 * given.iterations, logging_steps=1,
        save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": example.prompt} for example in examples])
    common = {
        "model": model, "args": args, "reward_funcs": reward, "train_dataset": data,
        "processing_class": tokenizer,
    }  # fmt: skip
    if given.held:
        from entrostat.trainers.trl import EntropyGRPOTrainer

        trainer = EntropyGRPOTrainer(**common, entropy="0.7x")
    else:
        trainer = GRPOTrainer(**common)
    trainer.train()
    trainer.save_state()


if __name__ == "__main__":
    main()
