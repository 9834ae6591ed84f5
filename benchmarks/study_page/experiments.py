"""Tables of one experiment each, or of several beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import sub
from statistics import mean
from typing import Any

from scipy.stats import spearmanr

from entrostat.logs.run import Run
from entrostat.method.opefo import balance
from entrostat.study.figures import Figure, read_figure
from entrostat.study.results import Interval, spread

from .cells import plain, ranged, rows_of, said, short, signed, within
from .record import Record
from .settings import DISTINCT, LATE, MODEL, MODEL_ROWS, PASS, SCORE, columns


def off_policy(record: Record) -> list[str]:
    """Updates a rollout batch, by two clips."""
    seeds = record.shared("off_policy", record.groups["off_policy"])
    head, cells = ["updates a batch"], []
    shown = columns(LATE, SCORE, DISTINCT, half=f"{LATE} {SCORE} {DISTINCT}")
    for column in shown:
        head += [f"{column.word}, default clip", "clip-higher"]
    for updates in (1, 2, 4, 8, 16):
        row = [str(updates)]
        for column in shown:
            figure = read_figure(column.word, column.figure)
            for clip in ("grpo", "clip_higher"):
                group = f"{clip}-minibatches{updates}"
                row.append(column.cell(record.mean("off_policy", group, seeds, figure)))
        cells.append(row)
    return [said(seeds), "", *rows_of(head, cells)]


def first_moves(record: Record) -> list[str]:
    """Rank correlations over the settings of an experiment: with the score of the end."""
    score = Figure("evaluation", "test/avg@k", "last")
    moves = Figure("metric", "kl/old_new", 0.05)
    asked = {
        "rho of early KL and score": moves,
        "rho of final entropy and score": Figure("metric", "entropy/exact", "last"),
        "rho of summed entropy and score": Figure("metric", "entropy/exact", "sum"),
    }
    where = ("methods", "clipping", "off_policy", "law", "control", "signs", "steer_control",
             "restore")  # fmt: skip
    reach = {"early KL, range, nats": moves, "score, range": score}
    by_seed = "rho of early KL and score, mean over seeds"
    cells: dict[str, list[str]] = {w: [] for w in ("seeds", "settings", *reach, *asked, by_seed)}
    for experiment in where:
        # one update a batch leaves no policy behind: its KL(old || new) is 0 or not there
        groups = [
            g for g in record.groups[experiment]
            if (seeds := record.seeds(experiment, g))
            and record.figure(experiment, g, seeds[0], moves)
        ]  # fmt: skip
        seeds = record.shared(experiment, groups)
        # [settings][seeds] of each figure
        values = {
            figure: [record.each(experiment, g, seeds, figure) for g in groups]
            for figure in (score, *asked.values())
        }  # fmt: skip
        means = {figure: [mean(each) for each in table] for figure, table in values.items()}
        cells["seeds"].append(said(seeds).removesuffix(".").split(" ", 1)[1])
        cells["settings"].append(str(len(groups)))
        for word, figure in reach.items():
            cells[word].append(f"{short(min(means[figure]))} to {short(max(means[figure]))}")
        for word, figure in asked.items():
            cells[word].append(signed(rank_correlation(means[figure], means[score]), 2))
        pairs = zip(zip(*values[moves], strict=True), zip(*values[score], strict=True), strict=True)
        cells[by_seed].append(within(spread([rank_correlation(*of) for of in pairs]), sign=True))
    return rows_of(["", *(f"`{name}`" for name in where)], [[w, *c] for w, c in cells.items()])


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rho."""
    return float(spearmanr(x, y).statistic)


def estimators(record: Record, experiment: str, groups: Mapping[str, str]) -> list[str]:
    """Pearson / Spearman / share of equal signs of formulas with the change of entropy."""
    names = {
        "cov": "`cov` (COV Eq. 8)", "omega": "`omega` (STEER)",
        "omega_realised": "`omega_realised` (STEER Eq. 2)", "opefo": "`opefo` (OPEFO Eq. 6)",
        "corollary1": "`corollary1` (REPO)", "tabular": "`tabular` (exact for a table)",
        "first_order": "`first_order` (a derivative)",
    }  # fmt: skip
    seeds = record.shared(experiment, list(groups))
    rows = []
    for name, word in names.items():
        row = [word]
        kinds = {"where": ("pcc", "srcc"), "which": ("pcc", "srcc", "sign")}
        if name == "first_order":  # of the change at a place alone
            del kinds["which"]
        for group in groups:
            for side in ("where", "which"):
                found = [
                    record.sure(experiment, group, seeds,
                                Figure("analysis", f"estimators/{name}/{side}/{kind}", "mean"))
                    for kind in kinds.get(side, ())
                ]  # fmt: skip
                row.append(" / ".join(plain(each, 2) for each in found))
        rows.append(row)
    head = [""]
    for word in groups.values():
        head += [f"{word}, where", "which"]
    return [said(seeds), "", *rows_of(head, rows)]


def spearman(record: Record) -> list[str]:
    """What goes with entropy over the checkpoints of a run, from coefficient to coefficient.

    Figures of the evaluation with the evaluation's own entropy; those of analyses, which are of the
    iteration's rollouts, with the entropy of these.
    """
    groups = record.groups["spearman"]
    seeds = record.shared("spearman", groups)
    rows = {
        "different right answers": "distinct", "n-grams that differ": "diversity/ngram",
        "self-BLEU": "diversity/self_bleu", "entropy of the prompt": "prompt_entropy",
        "AUC of the probability for right against wrong answers": "calibration/auc",
        "pass@16": "pass@k", "avg@16": "avg@k",
    }  # fmt: skip
    cells = []
    for word, key in rows.items():
        row = [word]
        for name in ("test", "other"):
            if "/" in key and name == "other":
                row.append("")
                continue
            means = [
                mean(over_checkpoints(record.run("spearman", group, seed), name, key)
                     for seed in seeds)
                for group in groups
            ]  # fmt: skip
            row.append(ranged(means))
        cells.append(row)
    return [said(seeds), "", *rows_of(["", "in domain", "six digits, not trained on"], cells)]


def over_checkpoints(run: Run, name: str, key: str) -> float:
    """Spearman's rho of a figure with entropy."""
    table, _, inner = key.partition("/")
    if inner:
        entropy = {row["iteration"]: row["entropy/exact"] for row in run.metrics}
        pairs = [(entropy[row["iteration"]], row[table][inner]) for row in run.analysis]
    else:
        rows = [row for row in run.evaluation if row["set"] == name]
        pairs = [(row["entropy"], row[key]) for row in rows]
    return rank_correlation(*zip(*pairs, strict=True))


def sequential(record: Record) -> list[str]:
    """The second task's score, by what trained on the first and on it."""
    rows = {
        "GRPO after GRPO": "grpo", "DAPO after DAPO": "dapo", "REPO-R after REPO-R": "repo_r",
        "**GRPO after REPO-R**": "repo_r_grpo",
    }  # fmt: skip
    ways = {"short_long": "long", "long_short": "short"}
    seeds = record.shared("sequential", record.groups["sequential"])
    start = Figure("metric", "entropy/exact", "first")

    def score(group: str, task: str) -> str:
        figure = Figure("evaluation", f"{task}/avg@k", "last")
        return within(record.mean("sequential", group, seeds, figure))

    cells = [
        [
            word, *(score(f"{way}_{name}", task) for way, task in ways.items()),
            ", ".join(
                plain(record.sure("sequential", f"{way}_{name}", seeds, start), 2) for way in ways
            ),
        ]
        for word, name in rows.items()
    ]  # fmt: skip
    afresh = {"long": "long_grpo", "short": "short_grpo"}
    cells.append([
        "GRPO from the base", *(score(afresh[task], task) for task in ways.values()),
        ", ".join(plain(record.sure("sequential", afresh[t], seeds, start), 2)
                  for t in ways.values()),
    ])  # fmt: skip
    head = ["", "short, then long", "long, then short", "entropy, start of the second task"]
    return [said(seeds), "", *rows_of(head, cells)]


def presets(record: Record) -> list[str]:
    """What the clip holds back and what that does to entropy, from the same policies.

    Shares are of the tokens of the second to fourth update of an iteration, at the first of which
    no ratio differs from 1; changes are GRPO's, and the others' less its, seed by seed.
    """
    rows = {
        "grpo": "GRPO: (.2, .2)", "clip_higher": "clip-higher: (.2, .28)",
        "clip_lower": "clip-lower: (.28, .2)", "clip_tighter": "clip-tighter: (.12, .2)",
        "high_free": "no upper bound", "low_free": "no lower bound", "clip_free": "no clip",
    }  # fmt: skip
    places = {"base": "base", "half": "after 75 iterations"}
    seeds = record.shared("presets", [f"{place}_{name}" for place in places for name in rows])
    shown = {
        "first iteration": (Figure("analysis", "change/mean", "first"), 4),
        "five iterations": (Figure("analysis", "change/mean", "sum"), 3),
    }
    head = [""]
    for place in places.values():
        head += [f"{place}: held back above, below", *shown, "reward, first and fifth"]
    cells = []
    for name, word in rows.items():
        row = [word]
        for place in places:
            group = f"{place}_{name}"
            runs = [record.run("presets", group, seed) for seed in seeds]
            row.append(
                ", ".join(
                    f"{plain(100 * mean(held_back(run, side) for run in runs), 1)}%"
                    for side in ("high", "low")
                )
            )
            for figure, digits in shown.values():
                found = record.each("presets", group, seeds, figure)
                if name != "grpo":
                    others = record.each("presets", f"{place}_grpo", seeds, figure)
                    found = list(map(sub, found, others))
                row.append(within(spread(found), digits, sign=True))
            rewards = [[line["reward/mean"] for line in run.metrics] for run in runs]
            row.append(", ".join(plain(mean(each[i] for each in rewards), 2) for i in (0, -1)))
        cells.append(row)
    return [said(seeds), "", *rows_of(head, cells)]  # fmt: skip


def held_back(run: Run, side: str) -> float:
    """Share of the tokens that one side of the clip holds back, over updates but the first."""
    return mean(
        update["clipped"][side]["share"] for line in run.analysis for update in line["updates"][1:]
    )


def opefo_tokens(record: Record) -> list[str]:
    """What would balance the flow of entropy by Eq. 6, and by the exact influences of its tokens.

    Means over the analyses but that of the first iteration, whose step is AdamW's from empty
    moments.
    """
    rows = {
        "on_policy": "on-policy", "opefo": "OPEFO", "influence_flow": "balance by exact influences"
    }  # fmt: skip
    seeds = record.shared("opefo_tokens", list(rows))
    figures: dict[str, Callable[[Mapping[str, Any]], float]] = {
        "share of tokens in right answers": lambda line: line["correct"]["right"]["share"],
        "lam by Eq. 6": lambda line: lam_of(line, "opefo"),
        "lam by exact influences": lambda line: lam_of(line, "influence"),
    }
    cells = []
    for group, word in rows.items():
        lines = [record.run("opefo_tokens", group, seed).analysis[1:] for seed in seeds]
        cells.append([word] + [
            within(spread([mean(map(of, each)) for each in lines])) for of in figures.values()
        ])  # fmt: skip
    return [said(seeds), "", *rows_of(["", *figures], cells)]


def lam_of(line: Mapping[str, Any], flow: str) -> float:
    """The lam in [-1, 1] that would balance a flow as an analysis measured it (OPEFO Eq. 9)."""
    return balance(line["flow"][flow]["increase"], line["flow"][flow]["decrease"])


def beside_grpo(record: Record, experiment: str) -> list[str]:
    """Settings of a language model less GRPO, seed by seed, the furthest in entropy first."""
    groups = [name for name in MODEL_ROWS if name != "grpo"]
    seeds = record.shared(experiment, ["grpo", *groups])
    # of one right answer there is nothing to be different; of many, one is always among 16
    last = DISTINCT if experiment == "llm_words" else PASS
    shown = [column for column in MODEL if column.word in (LATE, SCORE, last)]
    figures = [read_figure(column.word, column.figure) for column in shown]
    found = {
        group: {
            column.word: spread(list(map(
                sub, record.each(experiment, group, seeds, figure),
                record.each(experiment, "grpo", seeds, figure),
            )))
            for column, figure in zip(shown, figures, strict=True)
        }
        for group in groups
    }  # fmt: skip
    groups.sort(key=lambda group: -(found[group][LATE] or Interval(0.0, 0.0, 0)).mean)
    cells = [
        [MODEL_ROWS[group], *(within(found[group][column.word], column.digits, sign=True)
                              for column in shown)]
        for group in groups
    ]  # fmt: skip
    return [said(seeds), "", *rows_of(["", *(column.word for column in shown)], cells)]


def forecast(record: Record, experiment: str, groups: Mapping[str, str]) -> list[str]:
    """How well the next change of entropy is foretold, by setting."""
    rows = {
        "influences, in sample": ("correlation", "forecast/in_sample", 0),
        "influences, cross-fitted": ("correlation", "forecast/crossed", 0),
        "momentum alone": ("correlation", "forecast/momentum", 0),
        "**AdamW's step**": ("correlation", "forecast/step", 0),
        "slope, AdamW's step": ("slope", "forecast/step", 0),
        "slope, cross-fitted influences": ("slope", "forecast/crossed", 0),
        "OPEFO's flow S+ - S- (Sec. 4), before the update": ("correlation", "flow/net", 0),
        "the law fitted to earlier iterations (COV)": ("correlation", "law/change", 0),
        "the previous change": ("correlation", "forecast/change", 1),
    }
    seeds = record.shared(experiment, list(groups))
    cells = []
    for word, (kind, key, lag) in rows.items():
        row = [word]
        for group in groups:
            if key == "forecast/momentum" and "0.0+" in group:  # beta1 = 0: nothing is in motion
                row.append("none")
                continue
            figure = Figure(kind, key, other="forecast/change", lag=lag)
            try:
                known = record.each(experiment, group, seeds, figure)
            except ValueError:
                if key != "law/change":  # which needs entropy to move in the first iterations
                    raise
                row.append("")
                continue
            reach = f" ({ranged(known)})" if kind == "correlation" else ""
            row.append(plain(mean(known), 2) + reach)
        cells.append(row)
    return [said(seeds), "", *rows_of(["", *groups.values()], cells)]
