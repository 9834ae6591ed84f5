"""Error messages for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ELSEWHERE = {  # names in TRL and veRL -> ours
    "learning_rate": "optim.lr",
    "adam_beta1": "optim.betas",
    "lr_scheduler_type": "optim.schedule",
    "warmup_steps": "optim.warmup",
    "lr_warmup_steps": "optim.warmup",
    "max_grad_norm": "optim.clip",
    "grad_clip": "optim.clip",
    "num_iterations": "optim.epochs",
    "ppo_epochs": "optim.epochs",
    "per_device_train_batch_size": "optim.micro_batch",
    "ppo_micro_batch_size_per_gpu": "optim.micro_batch",
    "loss_type": "optim.aggregation",
    "loss_agg_mode": "optim.aggregation",
    "num_generations": "sampling.rollouts",
    "rollout_n": "sampling.rollouts",
    "train_batch_size": "sampling.prompts",
    "max_completion_length": "sampling.max_new_tokens",
    "max_response_length": "sampling.max_new_tokens",
    "max_steps": "iterations",
    "total_training_steps": "iterations",
    "output_dir": "output",
    "model_name_or_path": "model",
    "lora_r": "lora.rank",
    "lora_rank": "lora.rank",
    "lora_alpha": "lora.alpha",
}


def close(given: str, names: Iterable[str], most: int = 3) -> list[str]:
    """The names closest in spelling to `given`, ignoring case; closest first.

    Our name for another trainer's term comes first; then names whose last part is the given one
    (`optim.lr` for `lr`).
    """
    lower: dict[str, str] = {}
    for name in names:
        lower.setdefault(name.lower(), name)
    same = ELSEWHERE.get(given.rsplit(".", 1)[-1].lower())
    found = [same] if same in lower else []
    found += [name for name in lower if name.rsplit(".", 1)[-1] == given.lower()]
    found += difflib.get_close_matches(given.lower(), list(lower), n=most, cutoff=0.5)
    return [lower[name] for name in dict.fromkeys(found)][:most]


def nearest(given: str, names: Iterable[str]) -> str | None:
    return next(iter(close(given, names, 1)), None)


def unknown(kind: str, given: str, names: Iterable[str], listed: str | None = None) -> str:
    """One line: the given name, the nearest name, the existing names.

    If there are too many names for one line, `listed` is a sentence on where to find them; the line
    then has the closest few.
    """
    names = sorted(names)
    guesses = close(given, names)
    hint = f" Did you mean {guesses[0]!r}?" if guesses else ""
    if listed is None:
        return f"unknown {kind} {given!r}.{hint} There are: {', '.join(names)}."
    also = f" Also close: {', '.join(guesses[1:])}." if guesses[1:] else ""
    return f"unknown {kind} {given!r}.{hint}{also} {listed}"


def refuse_options(
    words: Iterable[str], verb: str, known: Iterable[str], listed: str = "--help"
) -> None:
    """Raise on an unknown option; the option `listed` prints all options.

    Raises:
        ValueError: an unknown option; the message has the nearest one.
    """
    names = {name.replace("-", "_"): name for name in known}
    for word in words:
        if word.startswith("-") and word != "-":
            flag = word.split("=")[0]
            guess = nearest(flag.lstrip("-").replace("-", "_"), names)
            hint = f" Did you mean '--{names[guess]}'?" if guess else ""
            raise ValueError(f"unknown option {flag!r}.{hint} `{verb} {listed}` lists them all.")
