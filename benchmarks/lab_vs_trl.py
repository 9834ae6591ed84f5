"""Seconds of one GRPO iteration: entrostat's lab against TRL 1.16's GRPOTrainer, the same job.

The jobs (`jobs.py`), each on a CPU unless `--device cuda`, with the same prompts in the same order,
no network:
- `--model tiny`, the default: the demo. The shipped tiny policy on `target_sum`, 32 prompts x 8
  rollouts, at most 13 new tokens, then 2 epochs of 2 minibatches of 128 rollouts: 4 AdamW updates.
- `--model smollm2 --job words`: SmolLM2-135M (`entrostat model smollm2`) on few-shot prompts in
  plain text, 16 prompts x 16 rollouts, at most 8 new tokens to the line's end, 2 updates.
- `--model smollm2 --job chat`: 4 user questions in the chat template x 8 rollouts of at most 256
  new tokens, 2 updates; the reward is the share of a letter, so that each group has a signal.

TRL is set up as fast as its settings allow: in-process `generate` with a KV cache for all rollouts
at once, sdpa attention, fused AdamW, no logging, saving, progress bar, NaN filter or loader
process, a data set of nothing but prompts. (A static cache, eager attention: no clear difference
with the tiny policy; continuous batching: more than ten times slower on a CPU. TRL's vocabulary
tile of 32768, a private constant, costs it about a tenth with the tiny policy's 15 tokens; no
setting reaches it.) `loss_type="bnpo"` because it divides by the tokens of the minibatch, the
lab's token mean; TRL's default, "dapo", divides by half the tokens of the generation batch. Every
run asserts that a TRL iteration is one call for the rewards of all rollouts, then as often as there
are updates a loss on a minibatch and an update, and that it generates from the token ids that the
lab's own code makes of the task's prompts, each in a group.

`words` ends at the line's end. The lab looks for a newline in the text; TRL knows ids only, so all
tokens with a newline in them (129 of SmolLM2's) are eos ids in the `generation_config` of TRL's
model. TRL 1.16 takes every id given there for the end of a completion, in `generate` and in its
completion mask, which keeps the first of them and drops what follows: the lab's stop exactly.
Asserted: no such token before the last of a completion, and no other token in the losses. The chat
job's prompts are texts from the tokenizer's own template, which TRL takes as plain ones.

`--precision bf16` leaves the weights, AdamW and the loss in float32 on both sides:
- the lab: `precision="bf16"`, autocast around its passes; one context holds for the sampling of an
  iteration, so the weights are cast once for it; the head multiplies in bf16, folds in float32.
- TRL: `bf16=True`; on a CPU, accelerate then wraps the model's `forward` in autocast to bfloat16
  and turns its outputs to float32. A context holds for one forward pass, so `generate` casts the
  weights for each token anew. TRL's fused head multiplies in bf16, and its gradient in float32.

What is not the same, by each side's design:
- The lab leaves out groups whose rewards are all equal, TRL trains on them with advantage 0. The
  table gives their share, the tokens in the updates, and an upper estimate of the lab's time
  without that saving: its update time multiplied by all groups / kept groups.
- The lab computes a prompt once for its rollouts, in sampling and (packed) in training, and drops
  rollouts that have ended; TRL computes it for each, and on a CPU its head scores prompts as well.
- The lab runs with what it does by default: exact entropies, all metrics, a dump of every rollout
  token; a checkpoint every iteration with the tiny policy, every ten minutes with SmolLM2 (1.6 GB;
  so it counts in long iterations only). TRL keeps its metrics and writes nothing.
- The lab cuts new minibatches every epoch, TRL uses the same two halves in both.
- GRPO's 1e-6 under the fraction is 1e-4 in TRL. Samples differ, so rewards agree up to noise; on
  both sides they dip at first in the demo (Adam's first steps) and have recovered after about 10
  iterations.

`--measure 0` has the lab take the old policy from the sampler's own figures (float32 only) in place
of a pass of its own; TRL makes one, as wherever a rollout batch takes several updates.

Both processes run with the same environment. With SmolLM2, THP_MEM_ALLOC_ENABLE=1 is in it, which
puts torch's tensors on huge pages: the command `entrostat` sets it for itself, and TRL gets it too.
With the tiny policy it is 0: TRL uses 15 columns of a tile of 32768, so that huge pages have half a
gigabyte cleared in a pass, which makes its iteration half as long again (the lab's stays the same).
`--huge-pages` sets it otherwise.

Time is wall clock from the end of one iteration's updates to the end of the next one's, everything
in between included; what the lab writes once at a run's end is not. The lab's parts are its own
metrics; TRL's are timed around three of its methods: `_generate_single_turn` (generate),
`_get_per_token_logps_and_entropies` without gradient (log-probs), `_prepare_inputs` (with these
taken off: other); the rest of the iteration is its training steps. Peak memory is of the process,
loading and saving included. Rounds are interleaved (lab, TRL, lab, TRL, ...), a fresh process each,
the round's number as seed.

Example:
    python benchmarks/lab_vs_trl.py --rounds 5 --iterations 10 --json lab_vs_trl.json
    python benchmarks/lab_vs_trl.py --model smollm2 --job chat --precision bf16
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from statistics import mean, median
from typing import Any

from jobs import JOBS, Job, Run

TRL = "1.16.0"
ENVIRONMENT = {
    "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}  # fmt: skip


def peak(device: str) -> float:
    """The most memory that this process has held so far, on its device, in GB (1e9 bytes)."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def run_lab(run: Run, directory: Path) -> dict[str, Any]:
    """Train in the lab; seconds of the counted iterations, other figures of all."""
    import torch

    from entrostat import config, load_rollouts, train
    from entrostat.runs.progress import Progress

    job, times = run.job, []
    rows: list[dict[str, Any]] = []

    class Stamps(Progress):
        def trained(self, iteration: int, metrics: dict[str, Any]) -> None:
            times.append(time.perf_counter())
            rows.append(metrics)

    precision: Any = run.precision
    settings = config.TrainConfig(
        method=["grpo_token"], task={"name": job.task}, model=run.model, iterations=run.iterations,
        seed=run.seed, output=str(directory / "run"), device=run.device, precision=precision,
        threads=run.threads,
        sampling=config.Sampling(
            prompts=job.prompts, rollouts=job.rollouts, max_new_tokens=job.new_tokens,
            temperature=1.0, top_p=1.0, batch=job.batch, measure=run.measure,
        ),
        optim=config.Optim(
            lr=job.lr, betas=(0.9, 0.95), weight_decay=0.0, clip=1.0, epochs=job.epochs,
            minibatches=job.minibatches, micro_batch=job.minibatch, aggregation="token_mean",
        ),
        eval=config.Evaluation(prompts=0),
        save=config.Save(checkpoint_every=job.checkpoint_every, rollouts_every=1),
    )  # fmt: skip
    task = job.make_task()
    path = train(settings, task=task, progress=Stamps())
    dumps = [load_rollouts(path, i + 1) for i in range(run.iterations)]
    lengths = [dump.start.diff() for dump in dumps]
    for i, dump in enumerate(dumps):
        drawn = [task.example(job.prompts * i + j, "train").prompt for j in range(job.prompts)]
        assert dump.prompts == [prompt for prompt in drawn for _ in range(job.rollouts)]
    assert [row["optim/updates"] for row in rows] == [job.updates] * run.iterations
    assert torch.get_num_threads() == run.threads
    equal = [row["rollout/zero_advantage_groups"] / job.prompts for row in rows]
    trained = mean(int(n[d.trained].sum()) for n, d in zip(lengths, dumps, strict=True))
    saved = [row["time/update"] * e / (1 - e) for row, e in zip(rows, equal, strict=True)]
    seconds = run.between(times)
    return {
        "seconds": seconds,
        "seconds_all_groups": [a + b for a, b in zip(seconds, saved[run.warm_up :], strict=True)],
        "parts": {
            part: median(row[f"time/{part}"] for row in rows[run.warm_up :])
            for part in ("sample", "score", "measure", "update")
        },
        "peak": peak(run.device),
        "tokens": mean(int(n.sum()) for n in lengths),
        "trained": job.epochs * trained, "signal": job.epochs * trained,
        "equal": mean(equal),
        "rewards": [row["reward/mean"] for row in rows],
        "entropy": mean(row["entropy/exact"] for row in rows),
        "loss": mean(row["loss/policy"] for row in rows),
    }  # fmt: skip


def run_trl(run: Run, directory: Path, objective: bool = False) -> dict[str, Any]:
    """Train in TRL; seconds of the counted iterations, other figures of all.

    `objective`: in `EntropyGRPOTrainer`, with the objective that the lab trains with.
    """
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from entrostat.model_files import find
    from entrostat.models.policy import Policy
    from entrostat.models.stops import cut

    torch.set_num_threads(run.threads)
    job = run.job
    source = find(run.model)
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    task = job.make_task()
    examples = [task.example(i, "train") for i in range(job.prompts * run.iterations)]

    # the lab's token ids of each prompt, and the same prompts as TRL is given them
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    lab = Policy(None, tokenizer, torch.device("cpu"), [eos], pad, nullcontext, None)
    chat = getattr(task, "chat", None)
    chat = bool(tokenizer.chat_template) if chat is None else chat
    expected = [lab.encode(example.prompt, chat, "") for example in examples]
    texts = [example.prompt for example in examples]
    if chat:
        turns = [[{"role": "user", "content": text}] for text in texts]
        form = tokenizer.apply_chat_template
        texts = [form(turn, tokenize=False, add_generation_prompt=True) for turn in turns]

    # all tokens that complete one of the task's stops end a completion
    stop = getattr(task, "stop", ())
    assert all(len(one) == 1 for one in stop), "a longer stop may be spread over several tokens"
    pieces = tokenizer.batch_decode([[i] for i in range(len(tokenizer))]) if stop else []
    ends = {i for i, piece in enumerate(pieces) if any(one in piece for one in stop)}
    if ends:
        model.generation_config.eos_token_id = [eos, *sorted(ends)]

    events: list[str] = []
    times: list[float] = []
    clock: defaultdict[str, float] = defaultdict(float)
    clocks: list[dict[str, float]] = []
    rewards: list[list[Any]] = []
    lengths: list[list[int]] = []
    masked: list[int] = []

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        clock[part] += time.perf_counter() - began

    def batch() -> slice:
        first = job.prompts * len(rewards)
        return slice(first, first + job.prompts)

    def in_groups(of_prompts: list[Any]) -> list[Any]:
        return [one for one in of_prompts for _ in range(job.rollouts)]

    def reward(prompts: Any, completions: Any, completion_ids: Any, **_: Any) -> list[float | None]:
        assert prompts == in_groups(texts[batch()]), "not the lab's prompts, each in a group"
        assert not any(ends.intersection(ids[:-1]) for ids in completion_ids), "not stopped"
        events.append(f"rewards {len(completions)}")
        pairs = zip(completions, in_groups(examples[batch()]), strict=True)
        rewards.append([task.score(cut(text, stop), example) for text, example in pairs])
        lengths.append([len(ids) for ids in completion_ids])
        return rewards[-1]

    trainer_class: Any = GRPOTrainer
    loss: dict[str, Any] = {"loss_type": "bnpo"}
    more: dict[str, Any] = {}
    if objective:
        from entrostat import make_objective
        from entrostat.trainers.trl import EntropyGRPOTrainer

        trainer_class, loss = EntropyGRPOTrainer, {}
        more = {"objective": make_objective("grpo_token", aggregation="token_mean")}

    class Counted(trainer_class):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            events.append(f"loss {len(inputs['completion_ids'])}")
            masked.append(int(inputs["completion_mask"].sum()))
            return super().compute_loss(model, inputs, *args, **kwargs)

        def _prepare_inputs(self, generation_batch: Any) -> Any:
            with timed("prepare"):
                return super()._prepare_inputs(generation_batch)

        def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
            assert prompt_ids == in_groups(expected[batch()]), "not the lab's token ids"
            with timed("generate"):
                return super()._generate_single_turn(prompt_ids, *args, **kwargs)

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            with nullcontext() if torch.is_grad_enabled() else timed("log-probs"):
                return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    class Stamps(TrainerCallback):
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            events.append("update")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % job.updates == 0:
                times.append(time.perf_counter())
                clocks.append(dict(clock))
                clock.clear()

    settings = GRPOConfig(
        output_dir=str(directory), seed=run.seed, use_cpu=run.device == "cpu",
        bf16=run.precision == "bf16", gradient_checkpointing=False,
        # all rollouts at once, then every epoch an update on each minibatch of them
        num_generations=job.rollouts, per_device_train_batch_size=job.minibatch,
        gradient_accumulation_steps=1, steps_per_generation=job.minibatches,
        num_iterations=job.epochs, max_steps=job.updates * run.iterations, shuffle_dataset=False,
        max_completion_length=job.new_tokens, temperature=1.0, top_p=1.0, top_k=0,
        generation_kwargs={"use_cache": True},
        scale_rewards="group", epsilon=0.2, epsilon_high=0.2, beta=0.0, **loss,
        learning_rate=job.lr, lr_scheduler_type="constant", warmup_steps=0, adam_beta1=0.9,
        adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch_fused",
        report_to="none", disable_tqdm=True, logging_strategy="no", logging_nan_inf_filter=False,
        log_completions=False, save_strategy="no", eval_strategy="no", remove_unused_columns=True,
        dataloader_num_workers=0, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Counted(
        model=model, reward_funcs=reward, args=settings, callbacks=[Stamps()],
        train_dataset=Dataset.from_dict({"prompt": texts}), processing_class=tokenizer,
        **more,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    one = [f"rewards {job.batch}", *[f"loss {job.minibatch}", "update"] * job.updates]
    assert events == one * run.iterations, f"an iteration should be {one}: {events[:20]}"
    assert sum(masked) == job.epochs * sum(map(sum, lengths)), "not each token in each epoch"
    assert torch.get_num_threads() == run.threads
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.float32, run.device)}
    assert trainer.accelerator.native_amp == (run.precision == "bf16")
    assert model.config._attn_implementation == "sdpa"
    logged = trainer.state.log_history[-1]
    means = [mean(row) for row in rewards]
    assert abs(logged["reward"] - mean(means)) < 1e-5, "TRL saw other rewards"
    K = job.rollouts
    equal = [[len({*r[i : i + K]}) == 1 for i in range(0, job.batch, K)] for r in rewards]
    tokens = mean(sum(row) for row in lengths)
    signal = mean(
        sum(n for i, n in enumerate(row) if not flat[i // K])
        for row, flat in zip(lengths, equal, strict=True)
    )
    seconds = run.between(times)
    parts = [
        {"generate": c["generate"], "log-probs": c["log-probs"],
         "other": c["prepare"] - c["generate"] - c["log-probs"], "update": whole - c["prepare"]}
        for whole, c in zip(seconds, clocks[run.warm_up :], strict=True)
    ]  # fmt: skip
    return {
        "seconds": seconds,
        "parts": {part: median(each[part] for each in parts) for part in parts[0]},
        "peak": peak(run.device),
        "tokens": tokens, "trained": job.epochs * tokens, "signal": job.epochs * signal,
        "equal": mean(mean(flat) for flat in equal),
        "rewards": means, "entropy": logged["entropy"], "loss": logged["train_loss"],
    }  # fmt: skip


def run_objective(run: Run, directory: Path) -> dict[str, Any]:
    """Train in TRL with our objective."""
    return run_trl(run, directory, objective=True)


SIDES = {"lab": run_lab, "trl": run_trl, "objective": run_objective}


def environment(run: Run) -> dict[str, str]:
    """What both sides run with."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if run.device == "cpu" else {}
    return hidden | {
        "OMP_NUM_THREADS": f"{run.threads}", "MKL_NUM_THREADS": f"{run.threads}",
        "THP_MEM_ALLOC_ENABLE": f"{int(run.huge_pages)}", **ENVIRONMENT,
    }  # fmt: skip


def child(side: str, seed: int, flags: list[str], run: Run) -> dict[str, Any]:
    """One side of a round in a process of its own; exits with its error where it fails."""
    command = [sys.executable, __file__, *flags, "--side", side, "--seed", f"{seed}"]
    env = os.environ | environment(run)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"round {seed + 1}, {side} failed ({done.returncode}):\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def table(rounds: list[dict[str, dict[str, Any]]], job: Job) -> str:
    """The comparison."""
    lines = [f"{'seconds per iteration':32}  median     min     max"]
    pooled: dict[str, float] = {}
    for name, side, key in (
        ("lab", "lab", "seconds"),
        ("TRL", "trl", "seconds"),
        ("lab, were all groups kept (<=)", "lab", "seconds_all_groups"),
    ):
        every = [value for one in rounds for value in one[side][key]]
        pooled[name] = median(every)
        lines += [f"{name:32}{median(every):8.3f}{min(every):8.3f}{max(every):8.3f}"]
    for name, top, key in (
        ("ratio lab / TRL", "lab", "seconds"),
        ("the same, were all groups kept", "lab, were all groups kept (<=)", "seconds_all_groups"),
    ):
        each = [median(one["lab"][key]) / median(one["trl"]["seconds"]) for one in rounds]
        lines += [
            f"{name:32}{pooled[top] / pooled['TRL']:8.3f}   by round: median {median(each):.3f}, "
            f"{min(each):.3f} to {max(each):.3f} ({' '.join(f'{x:.3f}' for x in each)})"
        ]
    if "objective" in rounds[0]:
        each = [
            median(one["objective"]["seconds"]) / median(one["trl"]["seconds"]) for one in rounds
        ]
        lines += [
            f"{'ratio TRL with objective / TRL':32}{median(each):8.3f}   by round: {min(each):.3f} "
            f"to {max(each):.3f}"
        ]
    for name, side in (("lab's parts", "lab"), ("TRL's parts", "trl")):
        each = [one[side]["parts"] for one in rounds]
        parts = {part: median(of_round[part] for of_round in each) for part in each[0]}
        lines += [f"{name}: " + ", ".join(f"{part} {s:.4f}" for part, s in parts.items())]
    lines += ["", f"{'means over all iterations':32}     lab     TRL"]
    rows: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
        "tokens sampled": (".0f", lambda side: side["tokens"]),
        "  a rollout": (".1f", lambda side: side["tokens"] / job.batch),
        f"tokens in the {job.updates} updates": (".0f", lambda side: side["trained"]),
        "  with an advantage": (".0f", lambda side: side["signal"]),
        "groups of equal rewards": (".1%", lambda side: side["equal"]),
        "reward": (".3f", lambda side: mean(side["rewards"])),
        "  first iteration": (".3f", lambda side: side["rewards"][0]),
        "  last iteration": (".3f", lambda side: side["rewards"][-1]),
        "entropy (TRL: during updates)": (".3f", lambda side: side["entropy"]),
        "loss": (".4f", lambda side: side["loss"]),
        "peak memory of a process, GB": (".2f", lambda side: side["peak"]),
    }
    for name, (form, figure) in rows.items():
        values = [mean(figure(one[side]) for one in rounds) for side in ("lab", "trl")]
        lines += [f"{name:32}" + "".join(f"{value:>8{form}}" for value in values)]
    return "\n".join(lines)


def about(run: Run) -> dict[str, str]:
    """Job, command, versions, machine and environment."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        info = []
    names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    from entrostat import __version__

    packages = ("torch", "transformers", "trl", "accelerate")
    both = ", ".join(f"{key}={value}" for key, value in environment(run).items())
    return {
        "job": f"{run.job}, {run.precision}; {run.warm_up} of warm-up, {run.counted} counted",
        "command": shlex.join(["python", *sys.argv]),
        "versions": ", ".join(
            [f"entrostat {__version__}", *(f"{name} {metadata.version(name)}" for name in packages)]
        ),
        "python": platform.python_version(),
        "processor": f"{names[0] if names else platform.machine()}, {os.cpu_count()} seen",
        "load at start": f"{os.getloadavg()[0]:.2f}",
        "threads": f"torch {run.threads}; both sides: {both}",
    }


def parse() -> tuple[argparse.Namespace, Run]:
    """The command line, and the run that it asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    jobs = [name for of_model in JOBS.values() for name in of_model]
    add("--model", choices=list(JOBS), default=next(iter(JOBS)), help="default %(default)s")
    add("--job", choices=jobs, help="of the model; default: target_sum of tiny, words of smollm2")
    add("--precision", choices=["fp32", "bf16"], default="fp32", help="default %(default)s")
    add("--threads", type=int, help="of each side (default 1 with tiny, 2 with smollm2)")
    add("--huge-pages", type=int, choices=[0, 1], help="default 0 with tiny, 1 with smollm2")
    add("--measure", type=int, choices=[0, 1], default=1, help="the lab's sampling.measure")
    add("--rounds", type=int, help="processes per side (default 5 with tiny, 2 with smollm2)")
    add("--warm-up", type=int, help="iterations before those counted (default 2, 1 with smollm2)")
    add("--iterations", type=int,
        help="counted iterations per process (default 10, 2 with smollm2)")  # fmt: skip
    add("--device", choices=["cpu", "cuda"], default="cpu", help="default %(default)s")
    add("--directory", default="", help="of the model `shape` (benchmarks/gpu/model.py)")
    add("--objective", action="store_true", help="a third side: TRL with our objective")
    add("--json", type=Path, metavar="FILE", help="also write all figures there")
    add("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    add("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    known = JOBS[args.model]
    args.job = args.job or next(iter(known))
    if args.job not in known:
        parser.error(f"--job {args.job} is none of --model {args.model}: {', '.join(known)}")
    job = known[args.job]
    for name in ("huge_pages", "threads", "rounds", "warm_up", "iterations"):
        if getattr(args, name) is None:
            setattr(args, name, int(getattr(job, name)))
        if getattr(args, name) < (name != "huge_pages"):
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return args, Run(
        job, args.precision, args.threads, bool(args.huge_pages), args.warm_up, args.iterations,
        args.seed, bool(args.measure), args.device, args.directory,
    )  # fmt: skip


def main() -> None:
    """Run the rounds and print the table, or be one side of a round."""
    args, run = parse()
    if args.side:
        with tempfile.TemporaryDirectory() as folder:
            figures = SIDES[args.side](run, Path(folder))
        print(json.dumps(figures))
        return
    try:
        found = metadata.version("trl")
    except metadata.PackageNotFoundError:
        found = "none"
    if found != TRL:
        sys.exit(f"needs trl {TRL}, found {found}: its settings are checked against that version "
                 "only. Install it with: pip install 'entrostat[trl]'")  # fmt: skip
    from entrostat.model_files import find

    try:
        find(run.model)
    except ValueError as error:
        sys.exit(str(error))
    facts = about(run)
    passed = (
        "model", "job", "precision", "threads", "huge_pages", "warm_up", "iterations", "measure",
        "device", "directory",
    )  # fmt: skip
    flags = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in passed]
    sides = [side for side in SIDES if side != "objective" or args.objective]
    rounds: list[dict[str, dict[str, Any]]] = []
    for i in range(args.rounds):
        rounds.append({})
        for side in sides:
            rounds[-1][side] = child(side, i, flags, run)
            if args.json:  # what is known so far
                text = json.dumps({**facts, "rounds": rounds}, indent=1)
                args.json.write_text(text, encoding="utf-8")
        took = ", ".join(f"{s} {median(one['seconds']):.3f} s" for s, one in rounds[-1].items())
        print(f"round {i + 1} of {args.rounds}: {took}", file=sys.stderr, flush=True)
    print(table(rounds, run.job), "", *(f"{k}: {v}" for k, v in facts.items()), sep="\n")


if __name__ == "__main__":
    main()
