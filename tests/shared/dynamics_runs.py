"""Runs in memory with figures of entropy dynamics."""

from pathlib import Path

from entrostat.logs.run import Run
from pages import EVIL


def make_run(metrics=None, analysis=(), evaluation=(), **more) -> Run:
    metrics = metrics or [{"iteration": 1, "entropy/exact": 0.5, "reward/mean": 0.25}]
    given = {"config": {}, "config_text": "", "environment_text": "", "notes": ()} | more
    path = given.pop("path", Path("nowhere"))
    return Run(path=path, metrics=metrics, evaluation=list(evaluation), analysis=list(analysis),
               **given)  # fmt: skip


def curves(panel):
    return {curve.label: (list(curve.x), list(curve.y)) for curve in panel.curves}


def full_line(i: int) -> dict:
    """A line with everything that training writes, other numbers each iteration."""
    u = (i * 37 % 101) / 101
    four = {"share": 0.25, "influence": u - 0.5, "change": 0.1 * u, "entropy": 1 + u}
    both = {"mse": u, "scaled_mse": 1.0, "pcc": u, "srcc": -u, "sign": 0.5}
    return {
        "iteration": i, "time/analysis": 1.0, "change/mean": u - 0.4, "change/first_order": u,
        "change/simpson": -u, "influence/sum": u, "influence/top_1": 0.2, "influence/top_10": 0.7,
        "cov/mean": u + 0.1,
        "estimators": {
            name: {"where": both, "which": both, "update": {"mse_eta_l": u} | both}
            for name in ("cov", "cov_pg", "corollary1", "omega", "omega_realised", "opefo",
                         "tabular", "first_order", "simpson")
        },
        "flow": {
            name: {"increase": 1 + u, "decrease": 1.0, "net": u, "balance": -u / (2 + u)}
            for name in ("influence", "opefo", "change")
        },
        "covariance": {"0.0002": 5 + u, "0.002": 2 + u, "0.02": 1 + u, "0.2": 0.5, "1": 0.1},
        "quantiles": {"0.05": 0.0, "0.25": 0.1, "0.5": 0.2, "0.75": 1.0, "0.95": 2.0, "0.99": 3.0},
        "entropy": {"right": u, "wrong": 1 + u, "positive": u, "negative": 2 * u},
        "quadrants": dict.fromkeys(("I", "II", "III", "IV", "rest"), four),
        "correct": {"right": four, "wrong": four},
        "clipped": {
            side: {"share": 0.1, "change": u, "opefo": 30 * u, "in_update": -u}
            for side in ("high", "low")
        },
        "prompt_covariance": {"mean": u, "prompts": 9}
        | {third: {"prompts": 3, "reward": u, "cov": -u} for third in ("hard", "middle", "easy")},
        "position": [
            {"from": p, "to": p + 2, "tokens": 9, "influence": u, "change": -u, "entropy": 1.0}
            for p in range(0, 12, 2)
        ],
        "tokens": [
            {"text": text, "count": 3, "influence": place - u, "change": 0.1, "entropy": 1.0}
            for place, text in enumerate(["a", " ", "\n", EVIL, "\u202egnp", "\ud800", ""])
        ],
        "cloud": {
            key: [[(j % 5) - 2 * scale, -j / 600] for j in range(600)]
            for key, scale in (("before", 1.0), ("after", 0.9))
        },
    }  # fmt: skip
