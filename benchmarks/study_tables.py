"""The tables of docs/study.md, from the record beside it.

    python benchmarks/study_tables.py            # print those that the page should have
    python benchmarks/study_tables.py --write    # put them in their places
    python benchmarks/study_tables.py --check    # exit 1 where the page says something else

A place is what stands between `<!-- table NAME -->` and `<!-- end -->`. Every table is of the seeds
that all of its rows have on record, and says which; cells are means over them, with half of the 95%
interval (Student's t) behind ±. Nothing is trained and nothing is timed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from scipy.stats import spearmanr

from entrostat.logs.run import Run, read_run
from entrostat.study.claims import VERDICTS, Decided, decide, read_claims
from entrostat.study.figures import Figure, read_figure, value
from entrostat.study.file import read_study
from entrostat.study.plan import make_places, plan_of
from entrostat.study.record import restore
from entrostat.study.seeds import Interval, spread

ROOT = Path(__file__).parents[1]
RECIPES, RECORD, PAGE = ROOT / "recipes/study", ROOT / "docs/study", ROOT / "docs/study.md"
PLACE = re.compile(r"(<!-- table (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

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
        if some is None:
            return ""
        shown = plain(self.scale * some.mean, self.digits) + self.unit
        return shown + (f" ± {plain(self.scale * some.half, self.digits)}" * (
            self.half and some.n > 1
        ))  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Groups of an experiment, a row each.

    Attributes:
        experiment: whose.
        columns: from left to right; sorted by the first score, or as `rows` has them.
        rows: what the page calls a group; empty for all, by their own names.
        halves: whether it is set in two halves beside each other.
        order: the word of the column that sorts them, the highest first; "" for as they come.
    """

    experiment: str
    columns: tuple[Column, ...]
    rows: Mapping[str, str] = field(default_factory=dict)
    halves: bool = False
    order: str = ""


def columns(*words: str, half: str = f"{LATE} {SCORE}", test: str = "test") -> tuple[Column, ...]:
    """The usual ones; those that `half` names get an interval."""
    known = {
        LATE: Column(LATE, ENTROPY),
        SCORE: Column(SCORE, {"evaluation": f"{test}/avg@k"}),
        PASS: Column(PASS, {"evaluation": f"{test}/pass@k"}),
        DISTINCT: Column(DISTINCT, {"evaluation": f"{test}/distinct"}, 1),
    }
    return tuple(
        Column(w, known[w].figure, known[w].digits, half=w in half) for w in words
    )  # fmt: skip


USUAL = columns(LATE, SCORE, PASS, DISTINCT)
MODEL = columns(LATE, SCORE, PASS, DISTINCT, half=f"{LATE} {SCORE} {DISTINCT}")
MODEL_ROWS = {
    "grpo": "GRPO", "clip_higher": "clip-higher", "kl_cov": "KL-Cov", "clip_cov": "Clip-Cov",
    "on_policy": "on-policy, one update", "steer": "STEER", "pos_adv": "positive weight to .8x",
    "repo_r": "REPO-R, both ways", "thermostat": "thermostat at 1x", "opefo": "OPEFO, one update",
}  # fmt: skip
MOVES = Column("moves", {"metric": "kl/old_new", "at": 0.05}, 4, half=False)
OFF_TARGET = Column("off by", {"distance": "entropy/exact", "with": "entropy/first"})
TABLES: dict[str, Table] = {
    "methods": Table("methods", USUAL, halves=True, order=SCORE),
    "numerics": Table(
        "numerics",
        (
            *columns(LATE, SCORE),
            Column("clipped above", {"metric": "clip/high", "at": "mean"}, 2, False, 100, "%"),
            Column("clipped below", {"metric": "clip/low", "at": "mean"}, 2, False, 100, "%"),
        ),
        {
            "dapo": "DAPO", "dapo_rounded": "its log-probs rounded to bf16", "loop": "LOOP",
            "loop_rounded": "rounded", "rloo": "RLOO, one update", "rloo_rounded": "rounded",
            "dapo_bf16": "DAPO trained in bf16", "dapo_fp16": "in fp16",
        },
    ),
    "control": Table(
        "control",
        (OFF_TARGET, *columns(LATE, SCORE, DISTINCT)),
        {
            "thermostat": "thermostat", "adaptive_entropy": "adaptive coefficient (PAR 5.1)",
            "repo_d": "REPO-D", "repo_r_both_ways": "REPO-R, both ways", "rloo": "RLOO, one update",
            "gspo": "GSPO", "repo_r": "REPO-R", "grpo": "GRPO", "adapo": "ADAPO", "aepo": "AEPO",
            "dapo": "DAPO", "loop": "LOOP", "h_bonus": "entropy bonus (REPO's)",
        },
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
            "extreme_pos_only": "tokens of right answers alone",
            "extreme_low0.2": "lower bound .2", "extreme_updates4": "4 updates",
            "extreme_lr3e-5": "**a tenth of the learning rate**",
            "grpo": "GRPO, clip (.2, .2), 4 updates", "clip_wide": "clip (1, 1)",
            "clip_cov": "Clip-Cov, clip (1, 1)", "clip_cov_clipped": "Clip-Cov, clip (.2, .2)",
            "kl_cov": "KL-Cov, no clip", "kl_cov_clipped": "KL-Cov, clip (.2, .2)",
        },
    ),
    "llm_words": Table("llm_words", MODEL, MODEL_ROWS, order=DISTINCT),
    "llm_arithmetic": Table("llm_arithmetic", USUAL[:3], MODEL_ROWS, order=LATE),
    "llm_gym": Table("llm_gym", USUAL[:3], MODEL_ROWS, order=LATE),
}  # fmt: skip


class Record:
    """What is on record of the study's recipes, as runs in a directory of our own."""

    def __init__(self, folder: Path) -> None:
        files = sorted(p for p in RECIPES.glob("*.toml") if p.name != "claims.toml")
        plan = plan_of({path.stem: read_study(path) for path in files}, folder)
        make_places(plan)
        known = restore(plan, RECORD)
        self._runs = {
            (each.experiment, each.group, each.seed): plan.trainings[each.address].path
            for each in plan.named if each.address in known
        }  # fmt: skip
        self._planned = [(each.experiment, each.group, each.seed) for each in plan.named]
        self.groups: dict[str, list[str]] = {}
        for each in plan.named:
            groups = self.groups.setdefault(each.experiment, [])
            if each.group not in groups:
                groups.append(each.group)
        self.run: Callable[[str, str, int], Run] = cache(
            lambda *key: read_run(self._runs[key])
        )  # fmt: skip

    def seeds(self, experiment: str, group: str) -> list[int]:
        """Those that a group has."""
        return sorted(s for e, g, s in self._runs if (e, g) == (experiment, group))

    def planned(self, experiment: str, group: str) -> list[int]:
        """Those that a group is to have."""
        return [s for e, g, s in self._planned if (e, g) == (experiment, group)]

    def shared(self, experiment: str, groups: Sequence[str]) -> list[int]:
        """Those that all of the groups have."""
        found = [set(self.seeds(experiment, group)) for group in groups]
        return sorted(set.intersection(*found)) if found else []

    def figure(self, experiment: str, group: str, seed: int, figure: Figure) -> float | None:
        """A number of a run."""
        return value(self.run(experiment, group, seed), figure)

    def mean(
        self, experiment: str, group: str, seeds: Sequence[int], figure: Figure
    ) -> Interval | None:
        """Its mean over seeds; None where one has it not."""
        found = [self.figure(experiment, group, seed, figure) for seed in seeds]
        whole = [each for each in found if each is not None]
        return spread(whole) if len(whole) == len(found) else None

    def sure(self, experiment: str, group: str, seeds: Sequence[int], figure: Figure) -> float:
        """The mean over seeds.

        Raises:
            ValueError: a run has it not.
        """
        some = self.mean(experiment, group, seeds, figure)
        if some is None:
            raise ValueError(f"study_tables: {experiment}/{group} does not have {figure}")
        return some.mean


def plain(number: float, digits: int) -> str:
    """A number as the page writes it: no 0 before the point."""
    text = f"{number:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return bare(text)


def said(seeds: Sequence[int]) -> str:
    """Which seeds, in words."""
    if len(seeds) == 1:
        return f"Seed {seeds[0]}."
    runs = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"Seeds {seeds[0]} to {seeds[-1]}." if runs else f"Seeds {', '.join(map(str, seeds))}."


def rows_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table of Markdown."""
    return [
        f"| {' | '.join(each)} |" for each in (head, ["---"] * len(head), *rows)
    ]  # fmt: skip


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
    asked = {
        "first moves, with the score": Figure("metric", "kl/old_new", 0.05),
        "entropy at the end, with the score": Figure("metric", "entropy/exact", "last"),
        "entropy summed, with the score": Figure("metric", "entropy/exact", "sum"),
    }
    where = ("methods", "clipping", "off_policy", "law", "control", "signs", "steer_control",
             "restore")  # fmt: skip
    reach = ("first moves, least to most, nats", "score, least to most")
    cells: dict[str, list[str]] = {w: [] for w in ("seeds", "settings", *reach, *asked)}
    for experiment in where:
        # one update a batch leaves no policy behind: its KL(old || new) is 0 or not there
        groups = [
            g for g in record.groups[experiment]
            if (seeds := record.seeds(experiment, g))
            and record.figure(experiment, g, seeds[0], asked["first moves, with the score"])
        ]  # fmt: skip
        seeds = record.shared(experiment, groups)
        cells["seeds"].append(said(seeds).removesuffix(".").split(" ", 1)[1])
        cells["settings"].append(str(len(groups)))
        means = {
            figure: [record.sure(experiment, g, seeds, figure) for g in groups]
            for figure in (score, *asked.values())
        }  # fmt: skip
        for word, figure in zip(reach, (next(iter(asked.values())), score), strict=True):
            cells[word].append(f"{short(min(means[figure]))} to {short(max(means[figure]))}")
        for word, figure in asked.items():
            rho = float(spearmanr(means[figure], means[score]).statistic)
            cells[word].append(("+" if rho > 0 else "") + plain(rho, 2))
    return rows_of(["", *(f"`{name}`" for name in where)], [[w, *c] for w, c in cells.items()])


def estimators(record: Record) -> list[str]:
    """Pearson / Spearman / share of equal signs of formulas with the change of entropy."""
    names = {
        "cov": "`cov` (COV Eq. 8)", "omega": "`omega` (STEER)",
        "omega_realised": "`omega_realised` (STEER Eq. 2)", "opefo": "`opefo` (OPEFO Eq. 6)",
        "corollary1": "`corollary1` (REPO)", "tabular": "`tabular` (exact for a table)",
        "first_order": "`first_order` (a derivative)",
    }  # fmt: skip
    seeds = record.shared("estimators", record.groups["estimators"])
    rows = []
    for name, word in names.items():
        row = [word]
        kinds = {"where": ("pcc", "srcc"), "which": ("pcc", "srcc", "sign")}
        if name == "first_order":  # of the change at a place alone
            del kinds["which"]
        for group in ("grpo", "on_policy"):
            for side in ("where", "which"):
                found = [
                    record.sure("estimators", group, seeds,
                                Figure("analysis", f"estimators/{name}/{side}/{kind}", "mean"))
                    for kind in kinds.get(side, ())
                ]  # fmt: skip
                row.append(" / ".join(plain(each, 2) for each in found))
        rows.append(row)
    head = ["", "four updates, where", "which", "one update, where", "which"]
    return [said(seeds), "", *rows_of(head, rows)]


def decided_by(record: Record, file: Path) -> list[Decided]:
    """The claims of a file; those of experiments that are not whole are not decided."""
    return decide(
        read_claims(file), record.figure, record.seeds, planned_of=record.planned
    )  # fmt: skip


def verdicts(record: Record, file: Path) -> list[str]:
    """The claims that are decided, and how many are not."""
    decided = decided_by(record, file)
    marks = {True: "", False: " (†)"}
    rows = [
        [
            one.claim.says, f"{one.claim.paper} {one.claim.where}",
            f"**{one.verdict}**{marks[one.robust]}",
            reach(one), bare(f"{one.claim.least:g}"), str(len(one.effects)),
        ]
        for verdict in VERDICTS[:2] for one in decided if one.verdict == verdict
    ]  # fmt: skip
    counts = {verdict: sum(one.verdict == verdict for one in decided) for verdict in VERDICTS}
    lead = (
        f"Of {len(decided)} claims {counts[VERDICTS[0]]} hold, {counts[VERDICTS[1]]} do not, and "
        f"{counts[VERDICTS[2]]} cannot be told so far."
    )
    head = ["claim", "who", "verdict", "effect, 95% interval", "counts from", "seeds"]
    return [lead, "", *rows_of(head, rows)]


def open_claims(record: Record, file: Path) -> list[str]:
    """The claims that cannot be told, with what was seen."""
    rows = [
        [
            one.claim.says, one.claim.paper, reach(one), bare(f"{one.claim.least:g}"),
            str(len(one.effects)), still_open(one, record),
        ]
        for one in decided_by(record, file) if one.verdict == VERDICTS[2]
    ]  # fmt: skip
    head = ["claim", "who", "effect, 95% interval", "counts from", "seeds", "left open by"]
    return rows_of(head, rows)


def still_open(one: Decided, record: Record) -> str:
    """Why a claim cannot be told: runs to come, the number of claims, or its own interval."""
    experiment = one.claim.experiment
    planned = max(len(record.planned(experiment, group)) for group in one.claim.every_group)
    if len(one.effects) < planned:
        return "seeds to come"
    if one.low is None or one.high is None or one.low <= one.claim.least <= one.high:
        return "its interval"
    return f"the other claims (alone: {VERDICTS[one.high < one.claim.least]})"


def reach(one: Decided) -> str:
    """A claim's effect with its interval; empty without runs."""
    if one.estimate is None:
        return ""
    return f"{short(one.estimate)} ({short(one.low)} to {short(one.high)})"


def short(number: float | None) -> str:
    """Two digits, as the page writes them."""
    if number is None:
        return "—"
    return "0" if number == 0 else bare(f"{number:#.2g}".removesuffix("."))


def bare(number: str) -> str:
    """Without the 0 before the point."""
    return re.sub(r"^(-?)0\.", r"\1.", number)


def made(record: Record) -> dict[str, list[str]]:
    """Every table by its name."""
    claims = RECIPES / "claims.toml"
    return {name: table(record, asked) for name, asked in TABLES.items()} | {
        "off_policy": off_policy(record),
        "first_moves": first_moves(record),
        "estimators": estimators(record),
        "verdicts": verdicts(record, claims),
        "open": open_claims(record, claims),
    }


def with_tables(text: str, tables: Mapping[str, Sequence[str]]) -> str:
    """A page with its tables in their places.

    Raises:
        ValueError: it has a place for a table that there is not.
    """

    def put(match: re.Match[str]) -> str:
        if match[2] not in tables:
            raise ValueError(f"study_tables: no table {match[2]!r}; there are {', '.join(tables)}")
        return f"{match[1]}\n" + "\n".join(tables[match[2]]) + f"\n\n{match[4]}"

    return PLACE.sub(put, text)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put them in docs/study.md")
    parser.add_argument("--check", action="store_true", help="exit 1 where the page differs")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        tables = made(Record(Path(folder)))
    if not (asked.write or asked.check):
        for name, lines in tables.items():
            print(f"<!-- table {name} -->\n\n" + "\n".join(lines) + "\n\n<!-- end -->\n")
        return 0
    text = PAGE.read_text(encoding="utf-8")
    new = with_tables(text, tables)
    if asked.write:
        PAGE.write_text(new, encoding="utf-8")
        return 0
    return int(new != text)


if __name__ == "__main__":
    sys.exit(main())
