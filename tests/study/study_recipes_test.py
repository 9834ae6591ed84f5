"""The study's own recipes: every run can be meant, every claim can be computed, all run quickly."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrostat.model_files import is_whole, model_directory
from entrostat.study.claims import check_claims, read_claims
from entrostat.study.file import Study, check_runs, read_study
from entrostat.study.plan import plan_of
from paths import ROOT
from scripts import load_script

FOLDER = ROOT / "recipes/study"
RECORD = ROOT / "docs/study"
FILES = sorted(path for path in FOLDER.glob("*.toml") if path.name != "claims.toml")
# those whose policy ships: no language model, no size that has to be pretrained first
TINY = [path for path in FILES if "llm" not in path.stem and path.stem != "law_sizes"]


def groups(study: Study) -> list[str]:
    return list(dict.fromkeys(origin.group for origin in study.origins.values()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_run_can_be_meant(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the language model need not be on this machine
    monkeypatch.setattr("entrostat.study.file.check_model", lambda model: None)
    study, quick = read_study(path), read_study(path, quick=True)
    check_runs(study, path)
    check_runs(quick, path)
    seeds = {config.seed for config in study.runs.values()}
    assert len(seeds) >= 3
    assert len(quick.runs) * len(seeds) == len(study.runs)
    most = 5 if path.stem == "spearman" else 3  # its claim's figure is of four policies or more
    assert all(config.iterations <= most for config in quick.runs.values())
    words = path.read_text().split("title")[0]
    assert f"entrostat study recipes/study/{path.name}" in words
    assert "on two cores)" in words
    assert "EST" not in words


@pytest.mark.parametrize("page", ["study.md", "paper_index.md"])
def test_every_experiment_is_on_the_pages(page: str) -> None:
    text = (RECORD.parent / page).read_text()
    assert [path.stem for path in FILES if f"`{path.stem}`" not in text] == []


def test_every_claim_is_about_runs_that_are_made() -> None:
    claims = read_claims(FOLDER / "claims.toml")
    assert len(claims.claims) >= 30
    assert {claim.paper for claim in claims.claims} >= {"REPO", "COV", "OPEFO", "STEER", "PAR"}
    made = {path.stem: groups(read_study(path)) for path in FILES}
    assert {claim.experiment for claim in claims.claims} <= set(made)
    check_claims(claims, made)


def test_claims_of_the_papers_that_came_later_are_about_runs_that_are_made() -> None:
    made = {path.stem: groups(read_study(path)) for path in FILES}
    own = read_claims(FOLDER.parent / "findings/repo_own.toml")
    for claims in (own, read_claims(FOLDER.parent / "findings/later.toml")):
        assert {claim.experiment for claim in claims.claims} <= set(made)
        check_claims(claims, made)
    first = {one.id: one for one in read_claims(FOLDER / "claims.toml").claims}
    for claim in own.claims:  # word for word, of other runs
        old = first[claim.id.removeprefix("own-")]
        assert claim == replace(old, id=claim.id, experiment="control_repo", seeds=claim.seeds)
    old, new = (read_study(FOLDER / f"{stem}.toml") for stem in ("control", "control_repo"))
    for name, config in new.runs.items():  # nothing but the aggregation differs, and what is shown
        if name in old.runs:
            optim = replace(config.optim, aggregation="token_mean")
            assert replace(config, optim=optim, eval=old.runs[name].eval) == old.runs[name]


@pytest.mark.parametrize(
    "file", ["claims.toml", "again.toml", "momentum.toml", "warmup.toml", "opefo_dose.toml"]
)
def test_our_findings_are_about_runs_that_are_made(file: str) -> None:
    claims = read_claims(FOLDER.parent / "findings" / file)
    assert {claim.paper for claim in claims.claims} == {"OURS"}
    made = {path.stem: groups(read_study(path)) for path in FILES}
    assert {claim.experiment for claim in claims.claims} <= set(made)
    check_claims(claims, made)


def test_claims_that_are_decided_anew_are_the_same_word_for_word() -> None:
    """But for the experiment of the same settings on other seeds."""
    old, new = (
        {
            one.id.split("-", 1)[1]: one
            for one in read_claims(FOLDER.parent / "findings" / file).claims
        }
        for file in ("claims.toml", "again.toml")
    )
    for name, claim in new.items():
        assert claim == replace(
            old[name], id=claim.id, experiment="restore_fresh", seeds=claim.seeds
        )
    first, fresh = (
        {(study.origins[name].group, config.seed): config for name, config in study.runs.items()}
        for study in (read_study(FOLDER / f"{stem}.toml") for stem in ("restore", "restore_fresh"))
    )
    assert {seed for _, seed in fresh} == set(range(8, 16))
    assert len(fresh) == 9 * 8
    assert all(
        config == replace(first[group, 0], seed=seed) for (group, seed), config in fresh.items()
    )


@pytest.mark.long
def test_every_training_on_record_is_one_of_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that is added, or a default that changes, must not orphan what was recorded."""
    monkeypatch.setattr("entrostat.study.file.check_model", lambda model: None)
    known: set[str] = set()
    for path in FILES:
        known |= set(plan_of({path.stem: read_study(path)}, Path("nowhere")).trainings)
    texts = [lzma.decompress(path.read_bytes()) for path in RECORD.glob("*.jsonl.xz")]
    recorded = {json.loads(line)["address"] for text in texts for line in text.splitlines()}
    assert recorded
    assert recorded <= known


@pytest.mark.long
def test_the_tables_of_the_page_are_those_of_the_record() -> None:
    """`python benchmarks/study_tables.py --write` puts them there after trainings were recorded."""
    assert load_script("benchmarks/study_tables.py").main(["--check"]) == 0


def quickly(files: list[Path], out: Path, *more: str) -> dict[str, Any]:
    """Run the study in small, by its command; returns its results."""
    words = ["study", *map(str, files), "--quick", "--output", str(out), *more]
    words += ["--lean", "--record", str(out / "record")]  # no page for each of 150 trainings
    subprocess.run(
        [sys.executable, "-m", "entrostat.cli", *words],
        check=True, timeout=3600, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    results = json.loads((out / "results.json").read_text())
    assert set(results["experiments"]) == {path.stem for path in files}
    for name, one in results["experiments"].items():
        assert not one["failed"], name
        assert all(len(group["seeds"]) == group["planned"] for group in one["groups"].values())
    return results


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_grid_runs_quickly(tmp_path: Path) -> None:
    results = quickly(TINY, tmp_path / "out", "--claims", str(FOLDER / "claims.toml"))
    # one seed decides nothing, and every figure of a claim is there
    decided = results["claims"]["decided"]
    assert {one["verdict"] for one in decided} == {"cannot be told"}
    assert all("does not have the figure" not in one["why"] for one in decided)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_takes_another_policy_runs_quickly(tmp_path: Path) -> None:
    """SmolLM2 and the tiny policies of other sizes; `entrostat model NAME` makes each."""
    rest = [path for path in FILES if path not in TINY]
    models = {
        config.model for path in rest for config in read_study(path, quick=True).runs.values()
    }
    missing = sorted(m for m in models - {"tiny"} if not is_whole(model_directory(m)))
    if missing:
        pytest.skip(f"not on this machine: {', '.join(missing)} (entrostat model NAME)")
    quickly(rest, tmp_path / "out")
