"""Write examples/data/trl_grpo and trl_thermostat: two runs of TRL's on the tiny policy, on a CPU.

    python examples/data/record.py        # pip install 'entrostat[trl]'; half an hour on a CPU

Both are what a user of TRL has after `trainer.save_state()`: `trainer_state.json`. The first is
TRL's GRPOTrainer, whose entropy falls; the second is the same script with EntropyGRPOTrainer and
`objective=` as its one change. To keep the files small, the thermostat's own state and most of
the figures that only the second logs are left out (`KEPT`).
"""

import json
import os
import sys
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
from entrostat.trainers.trl import EntropyGRPOTrainer  # noqa: E402

HERE = Path(__file__).parent
STEPS = 400  # of the optimizer: 100 generation batches of 256 rollouts, 4 steps each
# groups of figures: TRL's own, and of ours those that the notebook looks at
KEPT = ("clip_ratio", "completions", "rewards", "entropy", "reward", "control", "thermostat")


def main(names: list[str]) -> None:
    """Record the runs of these names; both where there is none."""
    torch.set_num_threads(1)
    task = make_task("target_sum", seed=0)
    examples = {e.prompt: e for e in (task.example(i, "train") for i in range(1024))}

    def reward(prompts: list[str], completions: list[str], **_: object) -> list[float]:
        pairs = zip(prompts, completions, strict=True)
        return [float(task.score(text, examples[prompt])) for prompt, text in pairs]

    # four fifths of the first entropy
    held = {"name": "thermostat", "target": "0.8x", "knob": "zeta"}
    more = {"trl_grpo": {}, "trl_thermostat": {"objective": held}}
    for name in names or list(more):
        with tempfile.TemporaryDirectory() as folder:
            trainer = (EntropyGRPOTrainer if more[name] else GRPOTrainer)(
                model=AutoModelForCausalLM.from_pretrained(tiny_directory(), dtype=torch.float32),
                reward_funcs=reward,
                args=GRPOConfig(
                    output_dir=folder, seed=0, use_cpu=True, bf16=False,
                    gradient_checkpointing=False, num_generations=8,
                    per_device_train_batch_size=128, gradient_accumulation_steps=1,
                    steps_per_generation=2, num_iterations=2, max_steps=STEPS,
                    max_completion_length=24, learning_rate=4e-4, warmup_steps=20,
                    lr_scheduler_type="constant_with_warmup", logging_steps=4,
                    save_strategy="no", report_to="none", disable_tqdm=True,
                    dataloader_pin_memory=False,
                ),
                train_dataset=Dataset.from_dict({"prompt": list(examples)}),
                processing_class=AutoTokenizer.from_pretrained(tiny_directory()),
                **more[name],
            )  # fmt: skip
            trainer.train()
            trainer.save_state()
            state = json.loads(Path(folder, "trainer_state.json").read_text())
        state["stateful_callbacks"] = {}
        history = [
            {key: v for key, v in line.items() if "/" not in key or key.split("/")[0] in KEPT}
            for line in state.pop("log_history")
        ]
        lines = ",\n".join(map(json.dumps, history))
        head = json.dumps(state)[:-1]
        path = HERE / name / "trainer_state.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'{head}, "log_history": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1:])
