"""Where the runs of studies go, which are one training, and in which order they are done."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builders import refused
from entrostat.cli.studies import _take_ray
from entrostat.config import TrainConfig, from_dict
from entrostat.logs.run import read_run
from entrostat.runs.run_directory import BUSY
from entrostat.study import workers as local
from entrostat.study.content_hash import address_of, source_of
from entrostat.study.execute import (
    TRIES,
    State,
    execute,
    failed_before,
    last_iteration,
    last_words,
)
from entrostat.study.file import read_study
from entrostat.study.plan import STORE, Plan, Training, anywhere, make_places, plan_of
from entrostat.study.workers import Local

# --- what is one training


def config(**settings: Any) -> TrainConfig:
    return from_dict(settings)


def test_the_address_is_of_what_decides_a_result(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"prompt": "1", "answer": "1"}\n')
    task = {"name": str(tmp_path / "t.jsonl")}
    one = address_of(config(task=task))
    assert len(one) == 16
    assert int(one, 16) >= 0
    same = [config(task=task, output="elsewhere"), config(task=task, log="tensorboard")]
    assert {address_of(each) for each in same} == {one}
    others = [
        config(task=task, seed=1), config(task=task, method="gspo"), config(task=task, threads=1),
        config(task=task, optim={"lr": 1e-4}), config(), config(task=task, model="a/b"),
    ]  # fmt: skip
    after = [address_of(config(task=task), parent, start)  # type: ignore[arg-type]
             for parent in (one, "0" * 16) for start in ("final", "best")]  # fmt: skip
    found = [one, *map(address_of, others), *after]
    assert len(set(found)) == len(found)
    # begins with another's policy: its own model is of no importance
    assert after[0] == address_of(config(task=task, model="a/b"), one)
    (tmp_path / "t.jsonl").write_text('{"prompt": "2", "answer": "2"}\n')
    assert address_of(config(task=task)) != one


def test_the_rows_that_a_task_is_told_to_read_count(tmp_path: Path) -> None:
    """A file given by `path`, one for each split, a directory: as with a file that is the name."""
    folder = tmp_path / "rows"
    folder.mkdir()
    file = folder / "a.jsonl"
    tasks = [
        {"name": "gsm8k", "path": str(file)}, {"name": "gsm8k", "path": {"test": str(file)}},
        {"name": f"math:{folder}"},
    ]  # fmt: skip
    file.write_text("1")
    first = [address_of(config(task=task)) for task in tasks]
    assert first == [address_of(config(task=task)) for task in tasks]
    file.write_text("two")
    second = [address_of(config(task=task)) for task in tasks]
    (folder / "b.jsonl").write_text("more")
    assert len({*first, *second, address_of(config(task=tasks[2]))}) == 7


def test_code_that_is_named_counts_with_what_it_imports_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read, never imported: every file here would raise."""
    monkeypatch.chdir(tmp_path)
    files = {
        "own.py": "import json\nimport helpers\nfrom pack import part\nraise SystemExit(own)",
        "helpers.py": "raise SystemExit(helpers)", "other.py": "raise SystemExit(other)",
        "pack/__init__.py": "raise SystemExit(pack)",
        "pack/part.py": "from .deep import x\nraise SystemExit(part)",
        "pack/deep.py": "raise SystemExit(deep)", "pack/aside.py": "raise SystemExit(aside)",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    named: list[TrainConfig] = [
        config(method="own:mine"), config(task={"name": "own:Task"}),
        config(task={"name": "target_sum", "grader": "own:grade"}),
        config(eval=[{"name": "far", "task": {"name": "own:Task"}}]),
    ]  # fmt: skip
    first = [address_of(each) for each in named]
    assert len({*first, address_of(config(method="own:another"))}) == 5
    for name in ("other.py", "pack/aside.py"):
        (tmp_path / name).write_text("changed")
        assert [address_of(each) for each in named] == first
    known = set(first)
    for name in ("own.py", "helpers.py", "pack/deep.py", "pack/__init__.py"):
        (tmp_path / name).write_text(files[name] + "\n# changed")
        found = {address_of(each) for each in named}
        assert len(found) == 4
        assert not found & known
        known |= found
    broken = address_of(config(method="pack.part:mine"))
    (tmp_path / "pack/deep.py").write_text("not Python (")  # what can be read counts
    assert address_of(config(method="pack.part:mine")) != broken
    assert source_of("nowhere:mine") is None
    assert source_of("pack.nowhere:mine") is None


def test_of_installed_code_the_module_alone_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "of_others.py").write_text("import what_it_needs")
    (place / "what_it_needs.py").write_text("1")
    monkeypatch.syspath_prepend(str(place))
    first = source_of("of_others:mine")
    assert first is not None
    (place / "what_it_needs.py").write_text("2")
    assert source_of("of_others:mine") == first
    (place / "of_others.py").write_text("import what_it_needs  # changed")
    assert source_of("of_others:mine") != first


def test_a_model_s_files_count_and_its_name_does_not(tmp_path: Path) -> None:
    def model(name: str, weights: bytes) -> TrainConfig:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(weights)
        return config(model=str(tmp_path / name))

    first = address_of(model("a", b"1"))
    assert address_of(model("a", b"2")) != first
    assert address_of(model("a", b"1")) == first


FILE = """\
seeds = [0, 1]
jobs = 2
[base]
iterations = 3
save = {best = "test/avg@k"}
[[runs]]
name = "a"
[[runs]]
name = "b"
method = "gspo"
[[runs]]
name = "c"
after = "a"
start = "best"
[quick]
iterations = 1
"""


def plan(tmp_path: Path, *files: str, jobs: int | None = None, quick: bool = False) -> Plan:
    studies = {}
    for place, text in enumerate(files):
        path = tmp_path / f"s{place}.toml"
        path.write_text(text)
        studies[path.stem] = read_study(path, quick=quick)
    return plan_of(studies, tmp_path / "out", jobs)


def test_equal_settings_of_several_files_are_one_training(tmp_path: Path) -> None:
    made = plan(tmp_path, FILE, FILE.replace('"gspo"', '"steer"'))
    assert len(made.named) == 12
    assert len(made.trainings) == 8  # a, b, c and the other b, of two seeds
    make_places(made)
    out = tmp_path / "out"
    assert (out / "s0/a-0").resolve() == (out / "s1/a-0").resolve()
    assert (out / "s0/b-0").resolve() != (out / "s1/b-0").resolve()
    assert (out / "s0/a-0").readlink().parts[:2] == ("..", STORE)
    assert made.name_of(made.named[-1].address) == "s0/c-1"
    index = json.loads((out / "s1/study.json").read_text())
    assert index["runs"]["c-1"] == {
        "group": "c", "seed": 1, "address": made.named[-1].address,
    }  # fmt: skip
    # what changes is another training, and its name leads there; the rest stays
    before = (out / "s1/a-0").resolve()
    changed = plan(tmp_path, FILE, FILE.replace('"gspo"', '"opefo"'))
    make_places(changed)
    assert (out / "s1/a-0").resolve() == before
    assert (out / "s1/b-0").resolve().name == changed.of("s1")[1].address


def test_a_plan_for_processes_that_start_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "t.jsonl").write_text('{"prompt": "1", "answer": "1"}\n')
    (tmp_path / "s.toml").write_text(
        'seeds = [0]\n[base]\niterations = 3\ntask = {name = "t.jsonl"}\n'
        '[[base.eval]]\ntask = {name = "gsm8k", path = "t.jsonl"}\n'
        '[[runs]]\nname = "own"\nmodel = "model"\n[[runs]]\nname = "hub"\nmodel = "OWNER/NAME"\n'
        '[[runs]]\nname = "shipped"\n'
    )
    made = plan_of({"s": read_study(tmp_path / "s.toml")}, Path("out"))
    placed = anywhere(made)
    assert list(placed.trainings) == list(made.trainings)  # addresses are of what was asked for
    here = str(tmp_path)
    for each in placed.trainings.values():
        assert each.config.task["name"] == f"{here}/t.jsonl"
        assert [one.task for one in each.config.eval.sets] == [
            {"name": "gsm8k", "path": f"{here}/t.jsonl"}
        ]
        assert str(each.settings) == f"{here}/out/{STORE}/{each.address}.toml"
    models = [each.config.model for each in placed.trainings.values()]
    assert models == [f"{here}/model", "OWNER/NAME", "tiny"]
    paths = [str(each.path) for each in placed.trainings.values()]
    assert paths == [f"{here}/out/{name}-0" for name in ("own", "hub", "shipped")]
    assert {each.config.task["name"] for each in made.trainings.values()} == {"t.jsonl"}


def test_one_file_has_its_runs_in_the_directory_itself(tmp_path: Path) -> None:
    made = plan(tmp_path, FILE, quick=True)
    assert [each.path.relative_to(tmp_path).as_posix() for each in made.named] == [
        "out/a-0", "out/b-0", "out/c-0",
    ]  # fmt: skip
    assert {t.config.iterations for t in made.trainings.values()} == {1}
    a, _, c = made.trainings.values()
    assert (c.after, c.start, a.after) == (a.address, "best", None)
    assert a.share == 1 / 2
    assert {t.share for t in plan(tmp_path, FILE, jobs=4).trainings.values()} == {1 / 4}


def test_a_run_made_by_hand_is_taken_where_its_settings_are_the_same(tmp_path: Path) -> None:
    own = tmp_path / "out/s1/a-0"
    own.mkdir(parents=True)
    settings = read_study_of(tmp_path).runs["a-0"]
    (own / "config.toml").write_text(settings.to_toml())
    made = plan(tmp_path, FILE, FILE)
    make_places(made)
    assert made.trainings[made.named[0].address].path == own
    assert (tmp_path / "out/s0/a-0").resolve() == own
    assert not own.is_symlink()
    (own / "config.toml").write_text(replace(settings, seed=9).to_toml())
    refused(lambda: plan(tmp_path, FILE, FILE), "s1/a-0")


def read_study_of(tmp_path: Path) -> Any:
    (tmp_path / "s.toml").write_text(FILE)
    return read_study(tmp_path / "s.toml")


def test_a_run_of_a_study_knows_its_group(tmp_path: Path) -> None:
    make_places(plan(tmp_path, FILE))
    run = tmp_path / "out/a-1"
    (run / "metrics.jsonl").write_text('{"iteration": 1}\n')
    assert read_run(run).group == "a"
    assert read_run(run).name == "a-1"  # of a link its own name
    assert read_run(run.resolve()).group is None
    (tmp_path / "out/study.json").write_text('{"runs": [3]}')
    assert read_run(run).group is None


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('after = "a"', 'after = "d"', "run 'c': after 'd', which is no run above it; those are a"),
        ('after = "a"', 'after = "c"', "run 'c': after 'c', which is no run above it"),
        ('after = "a"', 'after = ["a"]', "run 'c': after ['a'], which is no run above it"),
        ('after = "a"', "", "start is 'final' or 'best', of the run that `after` names"),
        ('"best"\n[quick]', '"last"\n[quick]', "start is 'final' or 'best'"),
        ("save = {", "analyze = {}\n#", "start is 'best', and 'a-0' keeps no best policy"),
        ('after = "a"', 'after = "a"\nmodel = "x"', "it has both a model and `after`"),
        ("[quick]\niterations", "[quick]\niteration", "unknown key 'iteration'"),
        ("[quick]\niterations = 1", "[quick]\nseeds = 3", "quick: seeds must be a list"),
        ("[quick]\niterations = 1", "[quick]\noptim = {lr = 1.0}\n[grid]\n'optim.lr' = [1.0]",
         "quick.optim.lr is set, and the grid varies it"),
    ],
)  # fmt: skip
def test_what_cannot_begin_so_is_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    (tmp_path / "s.toml").write_text(FILE.replace(old, new))
    with pytest.raises(ValueError) as error:
        read_study(tmp_path / "s.toml", quick=True)
    assert told in str(error.value)


# --- code that changes under a study

OWN = """\
seeds = [0]
[base]
iterations = 3
[[runs]]
name = "a"
method = ["grpo", "own:mine"]
[[runs]]
name = "b"
method = ["grpo", "own:mine"]
optim.lr = 1e-4
[[runs]]
name = "c"
method = "grpo"
"""


class Changing:
    """Workers during whose first training somebody writes another own.py."""

    def __init__(self, workers: Scripted) -> None:
        self._workers, self.room, self.close = workers, workers.room, workers.close
        self.start = workers.start

    def ended(self) -> list[tuple[str, int]]:
        ended = self._workers.ended()
        if ended:
            Path("own.py").write_text("2")
        return ended


def test_what_was_trained_while_its_code_changed_is_nobody_s_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("1")
    made = plan(tmp_path, OWN)
    make_places(made)
    kept: list[str] = []
    workers = Scripted(1, {})
    state = execute(
        made, Changing(workers), lambda state: None, keep=lambda each: kept.append(each.path.name)
    )
    assert names(workers.started) == ["a-0", "c-0"]  # b has not started with what it is not
    told = {made.name_of(address): why for address, why in state.failed.items()}
    changed = "own:mine was changed while the study ran; the same command trains it as it is now"
    assert told == {"a-0": changed, "b-0": f"not run: {changed}"}
    assert kept == ["c-0"]
    a = next(t for t in made.trainings.values() if t.path.name == "a-0")
    assert list(a.path.iterdir()) == []
    assert (a.store / f"{a.address}.changed/metrics.jsonl").exists()
    # both as they are now, and later as they were: nothing of the first try passes for either
    again, state = carried_out(plan(tmp_path, OWN), 1)
    assert names(again.started) == ["a-0", "b-0"]
    assert not state.failed
    Path("own.py").write_text("1")
    before, _ = carried_out(plan(tmp_path, OWN), 1)
    assert names(before.started) == ["a-0", "b-0"]


def test_code_that_no_path_leads_to_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an editable install, whose packages a finder of its own finds."""
    import importlib.util

    (tmp_path / "elsewhere.py").write_text("1")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            if name != "found_by_a_finder":
                return None
            return importlib.util.spec_from_file_location(name, tmp_path / "elsewhere.py")

    assert source_of("found_by_a_finder:mine") is None
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    first = source_of("found_by_a_finder:mine")
    assert first is not None
    (tmp_path / "elsewhere.py").write_text("2")
    assert source_of("found_by_a_finder:mine") != first


def test_what_a_package_offers_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "damped-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: damped\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[entrostat.methods]\ndamped_here = of_damped:Damped\n"
        "[entrostat.graders]\nshout_here = of_damped:shout\n"
        "[entrostat.tasks]\ncount_here = of_damped:CountUp\n"
    )
    (tmp_path / "of_damped.py").write_text("raise SystemExit('never imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    named = [
        config(method="damped_here"), config(task="count_here"),
        config(task={"name": "target_sum", "grader": "shout_here"}),
    ]  # fmt: skip
    ours, first = address_of(config()), [address_of(each) for each in named]
    (tmp_path / "of_damped.py").write_text("raise SystemExit('changed')")
    second = [address_of(each) for each in named]
    assert len({ours, *first, *second}) == 7
    assert address_of(config()) == ours


# --- in which order


class Scripted:
    """Workers of which each training ends as a script says: code and iterations a try."""

    def __init__(self, places: int, script: dict[str, list[tuple[int, int]]]) -> None:
        self.places, self.script = places, script
        self.started: list[tuple[str, list[str]]] = []
        self.now: list[Training] = []
        self.closed = False

    def room(self, training: Training) -> bool:
        return len(self.now) < self.places

    def start(self, training: Training, words: list[str]) -> None:
        self.started.append((training.path.name, words))
        self.now.append(training)

    def ended(self) -> list[tuple[str, int]]:
        if not self.now:
            return []
        training = self.now.pop(0)
        code, reached = (self.script.get(training.path.name) or [(0, 3)]).pop(0)
        path = training.path
        (path / "config.toml").write_text("")
        (path / "metrics.jsonl").write_text(f'{{"iteration": {reached}}}\n')
        if code == 0:
            (path / "final").mkdir()
            (path / "final/entrostat.json").write_text(f'{{"iterations": {reached}}}')
        with open(training.log, "a") as log:
            log.write(f"one\nentrostat: error: it broke at {reached}\n")
        return [(training.address, code)]

    def close(self) -> None:
        self.closed = True


def carried_out(made: Plan, places: int, **script: list[tuple[int, int]]) -> tuple[Scripted, State]:
    make_places(made)
    workers = Scripted(places, {name.replace("_", "-"): tries for name, tries in script.items()})
    state = execute(made, workers, lambda state: None)
    assert workers.closed
    assert not state.waiting
    assert not state.working
    return workers, state


def names(started: Sequence[tuple[str, list[str]]]) -> list[str]:
    return [name for name, _ in started]


def test_runs_start_in_order_and_after_those_that_they_build_on(tmp_path: Path) -> None:
    made = plan(tmp_path, FILE)
    workers, state = carried_out(made, 9)
    # c begins where a ends, which it waits for; nobody waits for c
    assert names(workers.started) == ["a-0", "b-0", "a-1", "b-1", "c-0", "c-1"]
    assert state.done == set(made.trainings)
    a, c = (t for t in made.trainings.values() if t.path.name in ("a-0", "c-0"))
    assert f'model = "{a.path.resolve() / "best"}"' in c.settings.read_text()
    words = dict(workers.started)["c-0"]
    assert words == ["--config", str(c.settings), "--output", str(c.path)]
    again, _ = carried_out(made, 9)
    assert again.started == []


def test_what_changed_runs_and_what_did_not_stays(tmp_path: Path) -> None:
    carried_out(plan(tmp_path, FILE), 9)
    workers, _ = carried_out(plan(tmp_path, FILE.replace('"gspo"', '"steer"')), 9)
    assert names(workers.started) == ["b-0", "b-1"]


def test_a_failure_is_kept_and_stops_only_what_builds_on_it(tmp_path: Path) -> None:
    made = plan(tmp_path, FILE)
    workers, state = carried_out(made, 1, a_0=[(1, 2)])
    assert names(workers.started) == ["a-0", "b-0", "a-1", "b-1", "c-1"]
    told = {made.name_of(address): why for address, why in state.failed.items()}
    assert told == {"a-0": "it broke at 2", "c-0": "not run: a-0 did not end well"}
    # what failed is taken up when the study is run again, where it stopped
    workers, state = carried_out(made, 1)
    path = str(tmp_path / "out/a-0")
    assert workers.started[0] == ("a-0", ["--resume", path])
    assert names(workers.started) == ["a-0", "c-0"]
    assert not state.failed


def test_a_failure_is_known_later(tmp_path: Path) -> None:
    """What `--report` shows, which trains nothing."""
    made = plan(tmp_path, FILE)
    make_places(made)
    by_name = {training.path.name: training for training in made.trainings.values()}
    a, b = by_name["a-0"], by_name["b-0"]
    a.log.parent.mkdir(parents=True, exist_ok=True)
    a.log.write_text("1/3\nentrostat: error: NaN in the loss\n")
    b.log.write_text("1/3\n2/3\n")  # was stopped
    c = by_name["c-0"]
    known = {a.address: "NaN in the loss", c.address: "not run: a-0 did not end well"}
    assert failed_before(made, set()) == known
    b.log.write_text("1/3\nentrostat: error: the disk is full\n2/3\n")  # taken up again
    assert failed_before(made, set()) == known
    assert failed_before(made, {a.address}) == {}


def test_a_run_that_was_killed_too_often_is_known_later(tmp_path: Path) -> None:
    """Else the seeds that memory had room for would speak for those that it had not."""
    made = plan(tmp_path, FILE)
    _, state = carried_out(made, 1, a_0=[(-9, 1)] * (1 + TRIES))
    log = next(t.log for t in made.trainings.values() if t.path.name == "a-0")
    log.write_text("1/3\n")  # killed: it could say nothing
    told = {made.name_of(address): why for address, why in state.failed.items()}
    assert set(told) == {"a-0", "c-0"}
    assert told["a-0"].startswith("killed by signal 9")
    assert failed_before(made, state.done) == state.failed
    _, state = carried_out(made, 1)  # taken up again, to the end
    assert failed_before(made, state.done) == {}
    assert not list((tmp_path / "out/.store").glob("*.failed"))


def test_an_earlier_try_does_not_say_why_a_later_one_ended(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("entrostat: error: the disk is full\n")
    start = log.stat().st_size
    with open(log, "a") as more:
        more.write("[2/3] entropy 2.1\n")
    assert last_words(log, -9, start) == "killed by signal 9; before: [2/3] entropy 2.1"


def test_a_killed_run_goes_on_while_it_comes_further(tmp_path: Path) -> None:
    kills = [(-9, 0), (-9, 1), (-9, 2), (-9, 2), (-9, 2)]
    workers, state = carried_out(plan(tmp_path, FILE), 1, a_0=[*kills, (0, 3)])
    assert not state.failed
    assert names(workers.started)[:6] == ["a-0"] * 6
    assert [(signal, reached) for _, signal, reached in state.killed] == [
        (9, 0), (9, 1), (9, 2), (9, 2), (9, 2),
    ]  # fmt: skip
    stuck = [(-9, 1)] * 9
    (tmp_path / "other").mkdir()
    workers, state = carried_out(plan(tmp_path / "other", FILE), 1, a_0=stuck)
    assert names(workers.started).count("a-0") == 1 + TRIES
    assert "killed by signal 9; before: it broke at 1" in state.failed.values()


def test_workers_are_closed_when_the_study_is_interrupted(tmp_path: Path) -> None:
    made = plan(tmp_path, FILE)
    make_places(made)
    workers = Scripted(1, {})

    def interrupted(state: State) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(made, workers, interrupted)
    assert workers.closed


def test_what_a_run_said_last(tmp_path: Path) -> None:
    assert last_words(tmp_path / "none.log", 1) == "no output"
    (tmp_path / "a.log").write_bytes(b"x\nTraceback\nKeyError: \xff\n")
    assert last_words(tmp_path / "a.log", 1) == "KeyError: \ufffd"


# --- where there is room


class Held:
    """In place of a process: one that holds some memory."""

    def __init__(self, pid: int) -> None:
        self.pid = pid


@pytest.mark.parametrize(
    ("held", "free", "share", "room"),
    [
        ([], 0, 1.0, True),  # alone there is always room
        ([4], 4, 0.5, True),
        ([4], 3, 0.5, False),  # what one has needed the next will need
        ([4, 1], 6, 0.25, False),  # the second will grow by 3, the third to 4: 7
        ([4, 1], 7, 0.25, True),
        ([4], 100, 0.75, False),  # more than one machine
        ([4], None, 0.5, True),  # a system that does not say
    ],
)
def test_room_is_a_matter_of_processors_and_memory(
    tmp_path: Path, held: list[int], free: int | None, share: float, room: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    training = next(iter(plan(tmp_path, FILE).trainings.values()))
    monkeypatch.setattr(local, "free_memory", lambda: free)
    monkeypatch.setattr(local, "_held", lambda pid: held[pid])
    workers = Local()
    for pid in range(len(held)):
        one = replace(training, address=str(pid), share=0.5 / len(held))
        workers._running[str(pid)] = (one, Held(pid))  # type: ignore[assignment]
    assert workers.room(replace(training, share=share)) is room


def test_memory_is_read_from_the_system() -> None:
    import os

    free, own = local.free_memory(), local._held(os.getpid())
    assert free is None or free > 2**20
    assert own > 2**20 or free is None
    assert local._held(2**22 + 1) == 0  # no such process


@pytest.mark.parametrize(
    ("words", "found", "rest"),
    [
        ("a.toml", None, "a.toml"),
        ("--ray a.toml", "local", "a.toml"),
        ("a.toml --ray", "local", "a.toml"),
        ("a.toml --ray auto b.toml", "auto", "a.toml b.toml"),
        ("--ray=10.0.0.1:6379 a.toml", "10.0.0.1:6379", "a.toml"),
        ("--ray 10.0.0.1:6379 a.toml", "10.0.0.1:6379", "a.toml"),
    ],
)
def test_the_address_of_a_cluster_may_be_left_out(words: str, found: str | None, rest: str) -> None:
    assert _take_ray(words.split()) == (found, rest.split())


def test_kills_before_the_furthest_iteration_are_no_progress(tmp_path: Path) -> None:
    """Else one that is killed at 2 and at 1 in turn would be taken up for ever."""
    kills = [(-9, 2), (-9, 1)] * 9
    workers, state = carried_out(plan(tmp_path, FILE), 1, a_0=kills)
    assert names(workers.started).count("a-0") == 1 + TRIES
    assert any(why.startswith("killed by signal 9") for why in state.failed.values())


def test_a_policy_that_was_removed_is_said(tmp_path: Path) -> None:
    made = plan(tmp_path, FILE)
    make_places(made)
    by_name = {training.path.name: training for training in made.trainings.values()}
    (by_name["a-0"].path / "recorded.json").write_text('{"iterations": 3}')
    workers, state = carried_out(made, 9)
    assert names(workers.started) == ["b-0", "a-1", "b-1", "c-1"]
    (why,) = state.failed.values()
    assert why.startswith("not run: the policy of a-0 was removed (--lean)")


def test_a_run_that_another_study_trains_has_not_failed(tmp_path: Path) -> None:
    """What holds its lock has its own word on how it ends; a later call asks again."""
    made = plan(tmp_path, FILE)

    class Busy(Scripted):
        def ended(self) -> list[tuple[str, int]]:
            ended = super().ended()
            for training in made.trainings.values():
                if training.path.name == "a-0" and training.log.exists():
                    training.log.write_text(f"entrostat: error: here: {BUSY}\n")
            return ended

    make_places(made)
    state = execute(made, Busy(1, {"a-0": [(1, 1)]}), lambda state: None)
    assert f"here: {BUSY}" in state.failed.values()
    assert not list((tmp_path / "out/.store").glob("*.failed"))


def test_a_name_of_a_run_and_of_a_file(tmp_path: Path) -> None:
    """A run called as a study file: its link gives way to the file's directory."""
    text = "[base]\niterations = 1\n[[runs]]\nname = '{}'\n"
    (tmp_path / "main.toml").write_text(text.format("grpo"))
    (tmp_path / "grpo.toml").write_text(text.format("r1"))
    studies = {name: read_study(tmp_path / f"{name}.toml") for name in ("main", "grpo")}
    make_places(plan_of({"main": studies["main"]}, tmp_path / "out"))
    assert (tmp_path / "out/grpo").is_symlink()
    make_places(plan_of(studies, tmp_path / "out"))
    assert not (tmp_path / "out/grpo").is_symlink()
    assert (tmp_path / "out/grpo/r1").readlink() == Path("../.store") / (
        (tmp_path / "out/main/grpo").readlink().name
    )
    refused(
        lambda: plan_of({"main": studies["main"]}, tmp_path / "out"),
        "holds the runs of a study file of that name",
    )


def test_progress_is_read_off_long_lines_too(tmp_path: Path) -> None:
    """A method may log hundreds of figures; a line that is still being written does not count."""
    many = {f"own/figure_{i}": 1 / (i + 3) for i in range(400)}
    lines = [json.dumps({"iteration": i} | many) for i in (1, 2, 3)]
    assert len(lines[0]) > 10_000
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert last_iteration(tmp_path) == 2
