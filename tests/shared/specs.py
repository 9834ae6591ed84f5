"""Every method as `make_objective` takes it, and settings that take another path through it."""

import entrostat as es

SPECS = {name: name for name in es.methods()} | {
    # settings that take another path through their method
    "ppo, dual": {"name": "ppo", "dual": 1.5},
    "ppo, scheduled": {"name": "ppo", "high": "linear 0.3 0.1"},
    "ppo, one-sided": {"name": "ppo", "low": None},
    "repo_r, batch centre": {"name": "repo_r", "center": "batch"},
    "repo_r, bidirectional": {"name": "repo_r", "bidirectional": True, "target": 0.2},
    "repo_r, immediate": {
        "name": "repo_r", "bidirectional": True, "target": 0.2, "flip": "immediate",
    },
    "repo_r, pi": {"name": "repo_r", "controller": "pi", "target": 0.35},
    "repo_d, token": {"name": "repo_d", "scope": "token", "zeta": 1.0},
    "repo_d, batch centre": {"name": "repo_d", "center": "batch", "controller": "none"},
    # of 18 tokens their shares would be none: at least one
    "clip_cov": {"name": "clip_cov", "at_least": 1},
    "kl_cov": {"name": "kl_cov", "at_least": 1},
    "rand_pos_clip": {"name": "rand_pos_clip", "at_least": 1},
    "quadrant": {"name": "quadrant", "share": 0.25},  # 1 of its 4 tokens
    "clip_cov, wide": {"name": "clip_cov", "low": 0.2, "ratio": 0.12, "at_least": 1},  # 2 of 18
    "kl_cov, k3": {"name": "kl_cov", "penalty": "k3", "frac": 0.2, "at_least": 1},  # 3 of 18
    "kl_cov, many": {"name": "kl_cov", "frac": 0.2, "at_least": 1},
    "opefo, static": {"name": "opefo", "mode": "static", "lam": 0.3},
    "opefo, plus_only": {"name": "opefo", "mode": "plus_only"},
    "opefo, minus_only": {"name": "opefo", "mode": "minus_only"},
    "steer, linear": {"name": "steer", "mapping": "linear"},
    "steer, binary": {"name": "steer", "mapping": "binary"},
    "steer, linear and signed": {"name": "steer", "mapping": "linear", "signed": True},
    "steer, binary and signed": {"name": "steer", "mapping": "binary", "signed": True},
    "stare": {"name": "stare", "target": 0.45},  # its gate is open at .3
    "stare, C2": {"name": "stare", "target": 0.45, "variant": "C2", "top": 0.4, "alpha": 0.1},
    "pos_adv, moved": {"name": "pos_adv", "weight": 0.5, "target": 0.35},
    "pos_adv, stage": {"name": "pos_adv", "schedule": "stage"},
    "pos_adv, epoch": {"name": "pos_adv", "schedule": "epoch"},
    "quadrant I, half": {"name": "quadrant", "share": 0.5},
    "quadrant II": {"name": "quadrant", "which": "II", "action": "double", "share": 1 / 3},
    "quadrant III": {"name": "quadrant", "which": "III", "share": 0.5},
    "quadrant IV": {"name": "quadrant", "which": "IV", "action": "double", "share": 0.5},
    "entropy_bonus, doubling": {"name": "entropy_bonus", "controller": "doubling", "target": 0.6},
    "entropy_bonus, dual": {"name": "entropy_bonus", "controller": "dual", "target": 0.6},
    "adaptive_entropy, open": {"name": "adaptive_entropy", "target": 0.45},
    "adaptive_entropy, closed": {"name": "adaptive_entropy", "coef": 1e-3},  # not in ADDED
    "adaptive_entropy, nll": {"name": "adaptive_entropy", "target": 0.95, "signal": "nll"},
    "prime, as printed": {"name": "prime", "norm": "none", "whiten": False, "gamma": 0.9},
    "kl_ref, k1": {"name": "kl_ref", "form": "k1"},
    "kl_ref, k2": {"name": "kl_ref", "form": "k2", "coef": 0.5},
    "kl_ref, unbiased": {"name": "kl_ref", "unbiased": True, "coef": 0.5},
    # a bound that some tokens pass
    "cispo, both bounds": {"name": "cispo", "low": 0.3, "high": 0.4},
    "dppo, kl": {"name": "dppo", "divergence": "kl", "low": 0.02, "high": 0.02},
    "icepop, narrow": {"name": "icepop", "low": 0.7, "high": 1.4},
    "m2po, loose": {"name": "m2po", "threshold": 0.1},
    "gmpo, narrow": {"name": "gmpo", "low": 0.2, "high": 0.2},
    "off_policy_mask, tight": {"name": "off_policy_mask", "delta": 0.05},
    "forking_tokens, quantile": {"name": "forking_tokens", "threshold": "quantile"},
    # several interventions at once
    "chain, papers": [
        "dapo", "repo_r", {"name": "steer", "mapping": "linear"},
        {"name": "pos_adv", "weight": 0.5},
    ],
    "chain, shapes": [
        "rloo", "adapo", "unlikeliness", "gtpo", "entropy_adv", "edge_grpo", "ppl_adv",
        "position_adv", "forking_tokens",
    ],
    "chain, penalties": [
        "gspo", {"name": "rand_pos_clip", "ratio": 0.12, "at_least": 1},
        {"name": "entropy_bonus", "coef": 0.02}, {"name": "kl_ref", "form": "k2", "coef": 0.1},
    ],
}  # fmt: skip
