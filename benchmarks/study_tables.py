"""The tables of docs/study/, from the record.

    python benchmarks/study_tables.py            # print those that the pages should have
    python benchmarks/study_tables.py --write    # put them in their places
    python benchmarks/study_tables.py --check    # exit 1 where a page says something else

A place is what stands between `<!-- table NAME -->` and `<!-- end -->`; `study_page/` makes what
belongs there. Every table is of the seeds that all of its rows have on record, and says which;
cells are means over them, with half of the 95% interval (Student's t) behind ±. Nothing is trained
and nothing is timed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from study_page import experiments, laws, verdicts
from study_page.record import RECIPES, ROOT, Record
from study_page.settings import TABLES, table

PAGES = sorted((ROOT / "docs/study").glob("*.md"))
PLACE = re.compile(r"(<!-- table (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
CLAIMS = RECIPES / "claims.toml"
FINDINGS = ROOT / "recipes/findings"
MAKERS = {name: partial(table, asked=asked) for name, asked in TABLES.items()} | {
    "off_policy": experiments.off_policy,
    "first_moves": experiments.first_moves,
    "estimators": partial(
        experiments.estimators,
        experiment="estimators",
        groups={"grpo": "four updates", "on_policy": "one update"},
    ),
    "estimators_llm": partial(
        experiments.estimators, experiment="estimators_llm", groups={"grpo": "two updates"}
    ),
    "spearman": experiments.spearman,
    "sequential": experiments.sequential,
    "presets": experiments.presets,
    "opefo_tokens": experiments.opefo_tokens,
    "words_beside": partial(experiments.beside_grpo, experiment="llm_words"),
    "arithmetic_beside": partial(experiments.beside_grpo, experiment="llm_arithmetic"),
    "gym_beside": partial(experiments.beside_grpo, experiment="llm_gym"),
    "forecast": partial(
        experiments.forecast,
        experiment="forecast",
        groups={
            f"prompts{n}-{beta}+0.95": f"{n} x 8, beta1 {word}"
            for beta, word in (("0.9", ".9"), ("0.0", "0"))
            for n in (8, 32, 128, 512)
        },
    ),
    "forecast_llm": partial(
        experiments.forecast,
        experiment="forecast_llm",
        groups={"0.9+0.95": "beta1 .9", "0.0+0.95": "beta1 0"},
    ),
    "law": laws.of_law,
    "law_sizes": laws.of_sizes,
    "verdicts": partial(verdicts.verdicts, file=CLAIMS),
    "open": partial(verdicts.open_claims, file=CLAIMS),
    "on_both": partial(verdicts.on_both, file=CLAIMS),
    "findings": partial(verdicts.of_fresh_seeds, file=FINDINGS / "claims.toml"),
    "later": partial(verdicts.verdicts, file=FINDINGS / "later.toml"),
    "aggregations": partial(verdicts.side_by_side, file=CLAIMS, other=FINDINGS / "repo_own.toml"),
    "again": partial(verdicts.of_fresh_seeds, file=FINDINGS / "again.toml"),
    "guesses_momentum": partial(verdicts.of_fresh_seeds, file=FINDINGS / "momentum.toml"),
    "guesses_warmup": partial(verdicts.of_fresh_seeds, file=FINDINGS / "warmup.toml"),
    "guesses_dose": partial(verdicts.of_fresh_seeds, file=FINDINGS / "opefo_dose.toml"),
}


def with_tables(text: str, tables: Callable[[str], Sequence[str]]) -> str:
    """A page with its tables in their places."""
    return PLACE.sub(
        lambda match: f"{match[1]}\n" + "\n".join(tables(match[2])) + f"\n\n{match[4]}", text
    )


def table_of(record: Record, name: str) -> Sequence[str]:
    """The lines of a table.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in MAKERS:
        raise ValueError(f"study_tables: no table {name!r}; there are {', '.join(MAKERS)}")
    return MAKERS[name](record)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put them in their places")
    parser.add_argument("--check", action="store_true", help="exit 1 where a page differs")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        tables = cache(partial(table_of, Record(Path(folder))))
        if not (asked.write or asked.check):
            for name in MAKERS:
                print(f"<!-- table {name} -->\n\n" + "\n".join(tables(name)) + "\n\n<!-- end -->\n")
            return 0
        old = {page: page.read_text(encoding="utf-8") for page in PAGES}
        new = {page: with_tables(text, tables) for page, text in old.items()}
    if asked.write:
        for page, text in new.items():
            page.write_text(text, encoding="utf-8")
        return 0
    return int(new != old)


if __name__ == "__main__":
    sys.exit(main())
