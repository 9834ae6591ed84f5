"""Tables of an experiment's settings, a row each: which figures, in which order, by which names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from entrostat.study.figures import read_figure
from entrostat.study.results import Interval

from .cells import rows_of, said, within
from .record import Record

ENTROPY = {"metric": "entropy/exact"}
LATE, SCORE, PASS, DISTINCT = "entropy, end", "avg@16", "pass@16", "different"


@dataclass(frozen=True)
class Column:
    """A figure of a run, as a claims file names it, and how it is printed."""

    word: str
    figure: Mapping[str, object]
    digits: int = 2
    half: bool = True
    scale: float = 1.0
    unit: str = ""

    def cell(self, some: Interval | None) -> str:
        """Its mean over seeds as the page writes it."""
        if some is not None:
            some = Interval(self.scale * some.mean, self.scale * some.half, some.n)
        return within(some, self.digits, unit=self.unit, half=self.half)


@dataclass(frozen=True)
class Table:
    """Groups of an experiment, a row each.

    Attributes:
        experiment: whose.
        columns: from left to right.
        rows: what the page calls a group; empty for all, by their own names.
        halves: whether it is set in two halves beside each other.
        order: the word of the column that sorts, the highest first; "" for as the rows come.
    """

    experiment: str
    columns: tuple[Column, ...]
    rows: Mapping[str, str] = field(default_factory=dict)
    halves: bool = False
    order: str = ""


def columns(*words: str, half: str = f"{LATE} {SCORE}") -> tuple[Column, ...]:
    """The usual ones; those that `half` names get an interval."""
    known = {
        LATE: Column(LATE, ENTROPY),
        SCORE: Column(SCORE, {"evaluation": "test/avg@k"}),
        PASS: Column(PASS, {"evaluation": "test/pass@k"}),
        DISTINCT: Column(DISTINCT, {"evaluation": "test/distinct"}, 1),
    }
    return tuple(
        Column(w, known[w].figure, known[w].digits, half=w in half) for w in words
    )  # fmt: skip


USUAL = columns(LATE, SCORE, PASS, DISTINCT)
MODEL = columns(LATE, SCORE, PASS, DISTINCT, half=f"{LATE} {SCORE} {DISTINCT}")
MODEL_ROWS = {
    "grpo": "GRPO", "clip_higher": "clip-higher", "kl_cov": "KL-Cov", "clip_cov": "Clip-Cov",
    "on_policy": "on-policy, one update", "steer": "STEER", "pos_adv": "positive weight to .8x",
    "repo_r": "REPO-R, both ways", "thermostat": "zeta as a knob, 1x", "opefo": "OPEFO, one update",
}  # fmt: skip
MOVES = Column("early KL", {"metric": "kl/old_new", "at": 0.05}, 4, half=False)
NEWER_ROWS = {
    "multiplier": "thermostat, 1x", "multiplier_75": "thermostat, .75x", "grpo": "GRPO",
    "entropic": "EntroPIC, 1x", "stare": "STARE, 1x", "ce_gppo": "CE-GPPO", "cispo": "CISPO",
    "sapo": "SAPO", "gmpo": "GMPO", "vespo": "VESPO", "up": "UP", "dppo": "DPPO", "ipo": "IPO",
    "icepop": "IcePop", "m2po": "M2PO",
}  # fmt: skip
OFF_TARGET = Column("RMS deviation", {"distance": "entropy/exact", "with": "entropy/first"})
HELD_BACK = (
    Column("clipped above", {"metric": "clip/high", "at": "mean"}, 2, False, 100, "%"),
    Column("clipped below", {"metric": "clip/low", "at": "mean"}, 2, False, 100, "%"),
)
TABLES: dict[str, Table] = {
    "methods": Table("methods", USUAL, halves=True, order=SCORE),
    "numerics": Table(
        "numerics",
        (
            *columns(LATE, SCORE),
            *HELD_BACK,
        ),
        {
            "dapo": "DAPO", "dapo_rounded": "DAPO, log-probs rounded to bf16", "loop": "LOOP",
            "loop_rounded": "LOOP, rounded", "rloo": "RLOO, one update",
            "rloo_rounded": "RLOO, rounded",
            "dapo_bf16": "DAPO trained in bf16", "dapo_fp16": "DAPO trained in fp16",
        },
    ),
    "control": Table(
        "control",
        (OFF_TARGET, *columns(LATE, SCORE, DISTINCT)),
        {
            "thermostat": "entropy bonus as a knob",
            "adaptive_entropy": "adaptive coefficient (PAR 5.1)",
            "repo_d": "REPO-D", "repo_r_both_ways": "REPO-R, both ways", "rloo": "RLOO, one update",
            "gspo": "GSPO", "repo_r": "REPO-R", "grpo": "GRPO", "adapo": "ADAPO", "aepo": "AEPO",
            "dapo": "DAPO", "loop": "LOOP", "h_bonus": "entropy bonus (REPO's)",
        },
    ),
    "control_newer": Table(
        "control_newer",
        (OFF_TARGET, *columns(LATE, SCORE, DISTINCT)),
        NEWER_ROWS | {"thermostat": "entropy bonus as a knob, 1x", "dapo": "DAPO"},
        order=SCORE,
    ),
    "clipping": Table(
        "clipping",
        USUAL,
        {
            "grpo": "GRPO: (.2, .2)", "clip_higher": "clip-higher: (.2, .28)",
            "clip_lower": "clip-lower", "clip_tighter": "clip-tighter", "clip_free": "clip-free",
            "sweep": "16 updates: (.2, .2)", "high0.1": "upper .1", "high0.5": "upper .5",
            "high0.8": "upper .8", "low0.1": "lower .1", "low0.5": "lower .5",
            "low0.8": "lower .8",
        },
    ),
    "signs": Table("signs", USUAL, order=LATE),
    "balance": Table(
        "balance",
        (*USUAL[:1], Column("kept", {**ENTROPY, "at": "kept"}), *USUAL[1:]),
        {
            "grpo": "GRPO, four updates", "clip_higher": "clip-higher, four updates",
            "on_policy": "on-policy, one update", "opefo": "OPEFO",
            "opefo_static": "OPEFO, fixed", "opefo_plus": "OPEFO, `plus_only`",
            "opefo_minus": "OPEFO, `minus_only`",
            "influence_flow": "balance by exact influences",
        },
    ),
    "steer_control": Table("steer_control", USUAL),
    "restore": Table(
        "restore",
        (MOVES, *columns(LATE, SCORE, DISTINCT)),
        {
            "extreme": "GRPO, clip (.99, 5), 16 updates (`extreme`)",
            "extreme_high0.2": "upper bound .2",
            "extreme_pos_only": "tokens of right answers only",
            "extreme_low0.2": "lower bound .2", "extreme_updates4": "4 updates",
            "extreme_lr3e-5": "**a tenth of the learning rate**",
            "grpo": "GRPO, clip (.2, .2), 4 updates", "clip_wide": "clip (1, 1)",
            "clip_cov": "Clip-Cov, clip (1, 1)", "clip_cov_clipped": "Clip-Cov, clip (.2, .2)",
            "kl_cov": "KL-Cov, no clip", "kl_cov_clipped": "KL-Cov, clip (.2, .2)",
        },
    ),
    "momentum": Table(
        "momentum",
        (*HELD_BACK, MOVES, *columns(LATE, SCORE, DISTINCT)),
        {
            f"{name}-{beta}+0.95": f"{word}{more}"
            for beta, more in (("0.9", ""), ("0.0", ", beta1 0"))
            for name, word in {
                "grpo": "GRPO: (.2, .2)", "clip_higher": "clip-higher: (.2, .28)",
                "clip_lower": "clip-lower: (.28, .2)", "high_free": "no upper bound",
                "low_free": "no lower bound", "clip_free": "no clip",
            }.items()
        },
    ),
    "warmup": Table(
        "warmup",
        (
            Column("reward, lowest", {"metric": "reward/mean", "at": "min"}),
            MOVES, Column("KL after warm-up", {"metric": "kl/old_new", "at": 0.12}, 4, half=False),
            *columns(LATE, SCORE, DISTINCT),
        ),
        {
            f"{name}{warm}": f"{word}{more}"
            for name, word in {
                "updates1": "GRPO, 1 update", "updates4": "GRPO, 4 updates",
                "updates16": "GRPO, 16 updates", "clip_free": "no clip, 4 updates",
                "clip_wide": "GRPO, clip (1, 1)", "clip_cov": "Clip-Cov, clip (1, 1)",
                "kl_cov": "KL-Cov, no clip",
                "extreme": "GRPO, clip (.99, 5), 16 updates",
                "on_policy": "on-policy, one update", "opefo": "OPEFO, one update",
            }.items()
            for warm, more in (("", ""), ("_warm", ", warm-up"))
        },
    ),
    "opefo_dose": Table(
        "opefo_dose",
        columns(LATE, SCORE, DISTINCT),
        {
            "on_policy": "lam 0 (on-policy)", "lam0.1": "lam .1", "lam0.2": "lam .2",
            "lam0.3": "lam .3", "lam0.4": "lam .4", "lam0.5": "lam .5",
            "opefo": "lam by OPEFO's rule",
        },
    ),
    "coefficients": Table(
        "spearman",
        USUAL,
        {"minus": "-.02", "zero": "0", "small": ".003", "middle": ".01", "large": ".03"},
    ),
    "covariance": Table("covariance", USUAL, {
        "grpo": "GRPO", "clip_cov2e-4": "Clip-Cov, 2e-4 of the tokens", "clip_cov2e-3": "2e-3",
        "clip_cov2e-2": "2e-2", "kl_cov0.1": "KL-Cov, coefficient .1", "kl_cov1": "1",
        "kl_cov10": "10",
    }),
    "diversity": Table(
        "diversity",
        (
            Column("entropy, end, six digits", {"evaluation": "six/entropy"}),
            Column("on all", {"evaluation": "all/entropy"}),
            Column("avg@16, six digits", {"evaluation": "six/avg@k"}),
            Column("on all", {"evaluation": "all/avg@k"}),
            Column("training reward", {"metric": "reward/mean"}),
        ),
        {
            "prompts37": "37: sums of six digits", "prompts68": "68: of five and six",
            "prompts93": "93: of four to six", "prompts112": "112: all", "random12": "12 at random",
            "random37": "37 at random", "random68": "68 at random",
        },
    ),
    "llm_words": Table("llm_words", MODEL, MODEL_ROWS, order=DISTINCT),
    "llm_words_newer": Table("llm_words_newer", MODEL, NEWER_ROWS, order=DISTINCT),
    "llm_arithmetic": Table("llm_arithmetic", USUAL[:3], MODEL_ROWS, order=LATE),
    "llm_gym": Table("llm_gym", USUAL[:3], MODEL_ROWS, order=LATE),
}  # fmt: skip


def table(record: Record, asked: Table) -> list[str]:
    """A table and the seeds that it is of."""
    rows = dict(asked.rows) or {g: f"`{g}`" for g in record.groups[asked.experiment]}
    seeds = record.shared(asked.experiment, list(rows))
    if not seeds:
        return ["Nothing is on record yet."]
    figures = [read_figure(each.word, each.figure) for each in asked.columns]
    found = {
        group: [record.mean(asked.experiment, group, seeds, figure) for figure in figures]
        for group in rows
    }
    order = list(rows)
    if asked.order:
        place = [each.word for each in asked.columns].index(asked.order)
        order.sort(key=lambda group: -(found[group][place] or Interval(-1.0, 0.0, 0)).mean)
    cells = [
        [rows[group]] + [c.cell(f) for c, f in zip(asked.columns, found[group], strict=True)]
        for group in order
    ]
    head = ["", *(each.word for each in asked.columns)]
    if asked.halves:
        middle = (len(cells) + 1) // 2
        blank = [""] * len(head)
        right = [*cells[middle:], blank][:middle]
        cells = [[*left, "", *mine] for left, mine in zip(cells[:middle], right, strict=True)]
        head = [*head, "", *head]
    return [said(seeds), "", *rows_of(head, cells)]
