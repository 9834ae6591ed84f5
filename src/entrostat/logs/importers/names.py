"""Names of metrics and trainers: one table for every reader and every check.

Names are compared in a folded form (`fold`): lower case, without W&B's run prefix and a leading
`train/`, and with every other punctuation mark as an underscore.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

DEPTH = 4  # levels of nested objects whose names are joined
KINDS = ("step", "entropy", "score")  # columns that a user may name

# metric -> folded names, the most direct first. TRL and ms-swift, veRL (rLLM, ROLL), slime,
# prime-rl, NeMo-RL, AReaL, OpenRLHF, SkyRL, open-instruct, tinker-cookbook
_ALIASES = {
    "step": """
        iteration global_step global_step_max_steps step global_steps trainer_global_step
        training_global_step training_step trainer_step train_step rollout_step current_steps
        system_step iter update num_updates progress_batch _step episode steps""",
    "entropy": """
        entropy_exact entropy_nll entropy_logged actor_entropy policy_entropy entropy
        policy_policy_entropy mean_entropy entropy_mean avg_entropy entropy_avg policy_entropy_avg
        token_entropy entropy_all_mean ppo_actor_update_entropy_avg approx_entropy optim_entropy
        rollout_entropy actor_entropy_loss entropy_loss""",
    "score": """
        reward_mean critic_score_mean critic_rewards_mean reward mean_reward rewards_mean
        rollout_raw_reward rollout_reward reward_avg_raw_reward ppo_actor_task_reward_avg
        objective_scores env_all_reward_total reward_all_mean rewards score score_mean mean_score
        accuracy acc pass_1 return mean_return avg_return avg_reward avg_total_reward
        reward_overall""",
    "length": """
        rollout_length_mean response_length_mean completions_mean_length response_length
        completion_length completion_length_mean mean_length rollout_response_lengths
        rollout_response_len_mean ppo_actor_seq_len_avg mean_gen_tokens_per_sample
        generate_avg_num_tokens val_sequence_lengths seq_len_all_mean decode_len_all_mean
        mean_generation_length response_lengths tokens_response_length_mean mean_tokens length""",
    "gradient": """
        grad_norm actor_grad_norm optim_grad_norm policy_grad_norm ppo_actor_update_grad_norm
        actor_grad_norm_mean""",
    "truncated": """
        rollout_truncated completions_clipped_ratio response_length_clip_ratio
        rollout_truncated_ratio truncation_rate is_truncated_all_mean ppo_actor_no_eos_ratios_avg
        truncated_ratio""",
    "limit": "completions_max_length response_length_max rollout_length_max",
    "no_signal": "rollout_zero_advantage_share frac_reward_zero_std zero_advantage_fraction",
    "clip": """
        clip_both clip_ratio_region_mean clipfrac clip_ratio actor_pg_clipfrac pg_clipfrac
        ppo_clip_ratio policy_ppo_clip_ratio policy_clipfrac_avg clip_fraction clip_frac
        ppo_actor_update_clip_ratio_avg probs_ratio_clamped_fraction""",
    "step_kl": "kl_old_new actor_ppo_kl ppo_kl policy_approxkl_avg",
    "ratio": "ratio_mean probs_ratio ratios",
    "rate": "optim_lr learning_rate actor_lr lr_pg_0 lr policy_policy_lr",
    "loss": "loss",
    "covariance": "cov_mean cov_update",
    "target": "control_target",
    "saturated": "thermostat_saturated",
    "mismatch_kl": """
        mismatch_kl mismatch_kl_mean mismatch_kl_all_mean rollout_corr_k3_kl rollout_corr_kl
        gen_kl_error""",
    "mismatch_logp": """
        mismatch_logp_abs_mean sampling_sampling_logp_difference_mean
        train_rollout_logprob_abs_diff""",
    "mismatch_prob": """
        mismatch_prob_abs_mean rollout_probs_diff_mean training_rollout_probs_diff_mean""",
    "correction": """
        sampling_importance_sampling_ratio_mean rollout_corr_rollout_is_mean rollout_is_mean tis
        train_tis""",
}
ALIASES = {quantity: names.split() for quantity, names in _ALIASES.items()}
# metrics that every reader renames; other metrics keep their trainer's name
OURS = {"reward/mean": "score", "rollout/length_mean": "length", "grad/norm": "gradient"}
_OTHER = {
    "coef", "coeff", "coefficient", "bonus", "target", "max", "min", "std", "var", "threshold",
    "key", "delta", "high", "low", "cross", "alpha", "lr", "available", "reason", "time", "val",
    "eval", "test", "p10", "p50", "p90", "quantile", "sem", "count", "raw", "weight", "gap",
}  # fmt: skip
_WORDS = {
    "entropy": {"entropy", "entropies"},
    "score": {"reward", "rewards", "rew", "score", "scores"},
}
_MEANS = {"mean", "avg", "average", "total"}

PPO = "TRL's PPOTrainer"  # and ms-swift's, which is TRL's
# trainer -> folded names that hardly any other trainer logs; the first trainer with enough matches
_TELLING = (
    ("entrostat", r"optim_updates"),  # not under TRL, which TRL's own names reveal
    ("ms-swift", r"global_step_max_steps|train_speed_iter_s|memory_gib|entropy_threshold"),
    ("TRL", r"completions_(mean|max|min)_length|completions_clipped_ratio|completion_length"
            r"|frac_reward_zero_std|clip_ratio_region_mean|reward_std"
            r"|sampling_sampling_logp_difference_mean"),
    ("ROLL", r"actor_entropy@(sum|mean)"),
    ("veRL", r"actor_entropy(_loss)?|actor_pg_loss|actor_ppo_kl|actor_pg_clipfrac"
             r"|critic_(score|rewards)_mean|response_length_clip_ratio|actor_grad_norm"),
    ("slime", r"rollout_raw_reward|pg_clipfrac|rollout_zero_std_count_.*"
              r"|train_rollout_logprob_abs_diff"),
    ("prime-rl", r"mismatch_kl(_all)?(_mean)?|(entropy|reward|seq_len)_all_mean|mfu|peak_mem"),
    ("NeMo-RL", r"approx_entropy|gen(eration)?_kl_error|token_mult_prob_error"
                r"|mean_generation_length"),
    ("AReaL", r"ppo_actor_.*"),
    ("OpenRLHF", r"ppo_clip_ratio|actor_lr|total_length|policy_loss"),
    ("SkyRL", r"policy_policy_entropy|reward_avg_raw_reward|policy_final_loss"),
    (PPO, r"val_num_eos_tokens"),
    ("open-instruct", r"policy_entropy_avg|objective_scores|policy_approxkl_avg"),
    ("tinker-cookbook", r"optim_entropy|env_all_.*"),
)  # fmt: skip


def flatten(record: Mapping[str, Any], depth: int = DEPTH) -> dict[str, Any]:
    """Flatten nested objects to names joined by "/", down to a depth."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict) and depth > 0:
            inner = flatten(value, depth - 1)
            flat |= {f"{key}/{name}": each for name, each in inner.items()}
        else:
            flat[str(key)] = value
    return flat


def bare(name: str) -> str:
    """Strip a name of W&B's run prefix, spaces around "/" and a leading "train/"."""
    name = re.sub(r"\s*/\s*", "/", name.rpartition(" - ")[2].strip())
    return re.sub(r"^((verl|train|stats|metrics)/)+(?=.)", "", name)


def fold(name: str) -> str:
    """Normalize a name for comparison.

    Example:
        >>> fold("run-7 - train/Policy.entropy mean"), fold("_step")
        ('policy_entropy_mean', '_step')
    """
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", bare(name)).lower()  # MeanReward
    plain = re.sub(r"[^a-z0-9@]+", "_", name).strip("_")
    return f"_{plain}" if name == "_step" else plain


def folded(names: Iterable[str]) -> dict[str, str]:
    """Map each folded name to the first name that folds to it."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(fold(name), name)
    return found


def find(quantity: str, names: Mapping[str, str]) -> str | None:
    return next((names[each] for each in ALIASES[quantity] if each in names), None)


def renamed(names: Iterable[str], own: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Map a source's names to ours, by the first alias present; our own names stay.

    `own` adds aliases (our name -> folded names) that only one trainer uses.
    """
    names = list(names)
    by_name = folded(names)
    aliases = {ours: ALIASES[quantity] for ours, quantity in OURS.items()} | dict(own)
    return {
        by_name[theirs]: ours
        for ours, some in aliases.items()
        if ours not in names and (theirs := next((e for e in some if e in by_name), None))
    }


def choose(quantity: str, names: Iterable[str]) -> tuple[str | None, list[str]]:
    """Return the name of "entropy" or "score", or None and the candidates if no name is certain.

    Example:
        >>> choose("entropy", ["step", "policy_entropy_mean", "entropy_coef"])
        ('policy_entropy_mean', [])
        >>> choose("entropy", ["head_entropy", "tail_entropy"])
        (None, ['head_entropy', 'tail_entropy'])
    """
    names = list(names)
    if (known := find(quantity, folded(names))) is not None:
        return known, []
    words = {name: {*re.split("[_@]", fold(name))} for name in names}
    means = {
        name: len({*fold(name).split("_")} & _MEANS) for name in names
    }  # mean@4: the mean over 4 samples
    likely = [n for n in words if words[n] & _WORDS[quantity] and not words[n] & _OTHER]
    ends = {n: {*fold(n.rpartition("/")[2]).split("_")} - _MEANS for n in likely}
    plain = [name for name, end in ends.items() if end and end <= _WORDS[quantity]]
    if len(plain) == 1:  # the only name that ends so: group/entropy, rewards/avg_total_reward
        return plain[0], []
    likely.sort(key=means.__getitem__, reverse=True)
    if len(likely) == 1 or (likely and sum(means[name] > 0 for name in likely) == 1):
        return likely[0], []
    return None, likely


def guess(names: Iterable[str], columns: Mapping[str, str]) -> dict[str, str]:
    """Map each kind of `KINDS` to the source's column name; kinds not found are absent.

    `columns` is the user's choice, kind -> name, exact or in another case.
    """
    names = list(names)
    by_name = folded(names)
    found: dict[str, str | None] = {}
    for kind in KINDS:
        if (name := columns.get(kind)) is not None:
            found[kind] = name if name in names else by_name.get(fold(name))
        else:
            found[kind] = find("step", by_name) if kind == "step" else choose(kind, names)[0]
    return {kind: name for kind, name in found.items() if name is not None}


def complete(found: Mapping[str, str], columns: Mapping[str, str]) -> bool:
    """Whether a step, an entropy or score, and every column that the user named were found."""
    return "step" in found and len(found) > 1 and columns.keys() <= found.keys()


_COMMON = ("TRL", "veRL", "slime", "prime-rl", "OpenRLHF")  # other trainers share names with these


def trainer_of(names: Collection[str], least: int = 1) -> str | None:
    """Return the trainer that uses these names; None if it is not clear.

    A trainer of `_COMMON` must match at least `least` of the names.
    """
    known = {fold(name) for name in names}
    for trainer, pattern in _TELLING:
        told = sum(re.fullmatch(pattern, name) is not None for name in known)
        if trainer == "ms-swift" and not known & {"reward", "reward_std"}:
            continue  # every ms-swift trainer logs the other names
        if trainer == "entrostat" and "entropy_exact" not in known:
            continue
        if told >= (least if trainer in _COMMON else 1):
            return "ms-swift" if trainer == "TRL" and "entropy_mean" in known else trainer
    return None
