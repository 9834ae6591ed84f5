"""Write tests/importers/trl/: six steps of TRL 1.16's GRPOTrainer on the tiny policy, on CPU.

    python tests/importers/make_trl.py

Keeps what a user has after a run: `checkpoint-3` and `checkpoint-6` with `trainer_state.json` (the
weights are left out), one evaluation, updates of which every second reuses the rollouts.
"""

import os
import shutil
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_DISABLE_TELEMETRY"] = os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from entrostat import make_task  # noqa: E402
from entrostat.model_files import tiny_directory  # noqa: E402

TARGET = Path(__file__).with_name("trl")


def main() -> None:
    torch.set_num_threads(1)
    task = make_task("target_sum", seed=0)
    examples = {e.prompt: e for e in (task.example(i, "train") for i in range(16))}

    def reward(prompts, completions, **_):
        pairs = zip(prompts, completions, strict=True)
        return [float(task.score(text, examples[prompt])) for prompt, text in pairs]

    data = Dataset.from_dict({"prompt": list(examples)})
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(tiny_directory(), dtype=torch.float32),
            reward_funcs=reward,
            args=GRPOConfig(
                output_dir=folder, seed=0, use_cpu=True, bf16=False, gradient_checkpointing=False,
                num_generations=4, per_device_train_batch_size=8, per_device_eval_batch_size=8,
                gradient_accumulation_steps=1, num_iterations=2, max_steps=6, beta=0.0,
                max_completion_length=24, temperature=0.9, learning_rate=3e-4, logging_steps=1,
                eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=3,
                report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
            ),
            train_dataset=data,
            eval_dataset=data.select(range(2)),
            processing_class=AutoTokenizer.from_pretrained(tiny_directory()),
        )  # fmt: skip
        trainer.train()
        shutil.rmtree(TARGET, ignore_errors=True)
        for step in (3, 6):
            name = f"checkpoint-{step}"
            (TARGET / name).mkdir(parents=True)
            shutil.copy(Path(folder, name, "trainer_state.json"), TARGET / name)


if __name__ == "__main__":
    main()
