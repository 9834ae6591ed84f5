"""Run the trainings of study files in processes or on a cluster, and compare them.

Finished runs are skipped and stopped runs resume, so a study may be interrupted and repeated.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .._text import say
from ..logs.files import make_directory
from ..logs.lines import read_json
from ..logs.run import called, read_run
from ..runs.progress import duration
from . import workers
from .execute import State, Workers, execute, failed_before, is_done, readable
from .file import RESERVED, Study, check_runs, read_study, with_seeds
from .plan import Plan, Training, anywhere, make_places, plan_of

if TYPE_CHECKING:
    from .claims import Claims

CLAIMS = "claims.toml"  # file in a directory of studies
WHOLE, DECIDED = "study.html", "claims.html"  # the page of a single study, without and with claims
_MANY_FACTS = 4  # such as commits: each run's own page has its value
MANY = 24  # above this number of runs the terminal shows groups


def run_study(
    paths: str | Path | Sequence[str | Path], output: str | None = None, jobs: int | None = None,
    trusted: bool = False, *, quick: bool = False, ray: str | None = None,
    record: str | Path | None = None, claims: str | Path | None = None,
    train: bool = True, seeds: Sequence[int] | None = None, lean: bool = False,
) -> int:  # fmt: skip
    """Run studies, print their tables and write their reports; returns the exit code.

    Args:
        paths: study files; a directory stands for those in it.
        output: directory for the runs; None takes runs/NAME of the file or directory.
        jobs: trainings at once; None takes each file's.
        trusted: whether the code that they name (MODULE:NAME) may be imported.
        quick: take what each file's `[quick]` says; the default directory is runs/NAME-quick.
        ray: address of a Ray cluster for the trainings, "local" to start one; None runs them in
            processes of this machine.
        record: a directory (`study.record`): recorded trainings are restored from it, finished
            ones are added to it.
        claims: a file of claims (`study.claims`) to decide; None uses `claims.toml` of a given
            directory.
        train: False reports finished runs and starts nothing.
        seeds: train only these of the files' seeds; None trains all. The report includes the
            other seeds, since claims are not decided on a part of the seeds.
        lean: with a record, remove a recorded training's weights once all trainings that start
            from its policy are done, and write no pages of single trainings.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files = _files(given, claims)
    if lean and record is None:
        raise ValueError("study: --lean removes weights whose numbers are on record; give --record")
    studies = {path.stem: read_study(path, trusted, quick) for path in files}
    chosen = studies  # trained now; the report covers all studies
    if seeds is not None:
        chosen = {name: with_seeds(study, seeds, name) for name, study in studies.items()}
    for path, study in zip(files, studies.values(), strict=True):
        check_runs(study, path, models=train)
    said = _claims(given, claims)
    if said is not None:
        from .claims import check_claims, misspelt_experiments  # scipy, not needed for `train`

        groups = {
            name: list(dict.fromkeys(origin.group for origin in study.origins.values()))
            for name, study in studies.items()
        }  # fmt: skip
        made = {name: {run.seed for run in s.runs.values()} for name, s in studies.items()}
        check_claims(said, groups, None if quick else made)
        _note(misspelt_experiments(said, studies))
    named = Path(called(Path(given[0]))).stem if len(given) == 1 else "study"
    directory = Path(output or f"runs/{named}{'-quick' if quick else ''}")
    plan = plan_of(studies, directory, jobs)
    from .confounding import confounded  # imports torch; `train` reads this module before it does

    for name, study in studies.items():
        where = f"{name}: " if len(studies) > 1 else ""
        _note(where + line for line in confounded(study.runs))
    machines: Workers = workers.OnRay(ray) if ray is not None and train else workers.Local()
    make_places(plan)
    kept: Callable[[Training], None] = lambda training: None  # noqa: E731
    if record is not None:
        from .record import recorded, restore

        make_directory(Path(record))  # raise now rather than after the first training
        restore(plan, Path(record))
        known = recorded(plan, Path(record))
        say(f"record: {len(known)} of {len(plan.trainings)} trainings are in {record}", sys.stderr)
        kept = partial(_keep, plan, Path(record), lean)
    done = {a for a, each in plan.trainings.items() if is_done(each)}
    if train:
        if done:
            whole = len(plan.trainings)
            rest = whole - len(done)
            say(f"{len(done)} of {whole} trainings are done, {rest} to go", sys.stderr)
        from .results import misspelt_figures

        asked = {name: study.figures for name, study in studies.items()}
        _note(misspelt_figures(plan, done, said, asked))
        now = plan if seeds is None else plan_of(chosen, directory, jobs)
        # a cluster's processes start in another directory
        state = _execute(now if ray is None else anywhere(now), machines, trusted, kept, not lean)
        state.done |= done
        state.failed = failed_before(plan, state.done) | state.failed
    else:
        state = State([], set(), failed_before(plan, done), done)
        if not state.done:
            raise ValueError(f"study: no training of {directory} is done; leave --report out")
    for address in [a for a in state.done if not readable(plan.trainings[a].path)]:
        state.done.discard(address)
        state.failed[address] = f"its metrics cannot be read ({plan.trainings[address].path})"
    _report(plan, studies, state, said)
    for address, why in state.failed.items():
        log = plan.trainings[address].log
        more = f" (all of it: {log})" if log.exists() else ""
        say(f"run {plan.name_of(address)!r} stopped: {why}{more}", sys.stderr)
    return 1 if state.failed else 0


def _note(lines: Iterable[str]) -> None:
    for line in lines:
        say(f"note: {line}", sys.stderr)


def _keep(plan: Plan, record: Path, lean: bool, training: Training) -> None:
    """Record a finished training; with `lean`, remove weights that are no longer needed."""
    from .record import save_record, strip

    try:
        save_record(training, record)
    except OSError as error:
        raise ValueError(f"record {str(record)!r}: {error.strerror}") from None
    if not lean:
        return
    for each in (training, plan.trainings.get(training.after or "")):
        if each is None or not is_done(each):
            continue
        builds = [other for other in plan.trainings.values() if other.after == each.address]
        if all(is_done(other) for other in builds):
            strip(each)


def _files(given: Sequence[str | Path], claims: str | Path | None = None) -> list[Path]:
    besides = {Path(claims).resolve()} if claims else set()
    files: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            found = sorted(
                each for each in path.glob("*.toml")
                if each.name != CLAIMS and each.resolve() not in besides
            )  # fmt: skip
            if not found:
                raise ValueError(f"study {str(path)!r}: the directory holds no study file")
            files += found
        elif path.name != CLAIMS:
            files.append(path)
    if not files:
        raise ValueError("study: claims alone are no study; name the study files too")
    stems = [path.stem for path in files]
    if taken := [stem for stem in stems if stem in RESERVED]:
        raise ValueError(
            f"study: a file called {taken[0]!r} would lie where a study writes; rename it"
        )
    if twice := [stem for stem in stems if stems.count(stem) > 1]:
        raise ValueError(
            f"study: two files are called {twice[0]!r}, which names the directory of their runs; "
            "rename one"
        )
    return files


def _claims(given: Sequence[str | Path], named: str | Path | None) -> Claims | None:
    from .claims import read_claims

    inside = [Path(p) / CLAIMS for p in given if (Path(p) / CLAIMS).is_file()]
    themselves = [Path(p) for p in given if Path(p).name == CLAIMS and not Path(p).is_dir()]
    found = list({place.resolve(): place for place in (*themselves, *inside)}.values())
    if named is None and len(found) > 1:
        raise ValueError(
            f"study: two files of claims, {str(found[0])!r} and {str(found[1])!r}; a family is one "
            "file: name it with --claims"
        )
    path = named or (found[0] if found else None)
    return None if path is None else read_claims(path)


def _execute(
    plan: Plan, workers: Workers, trusted: bool, keep: Callable[[Training], None], pages: bool
) -> State:
    from .progress import Bars

    bars = Bars(plan)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that trainings end too
    try:
        return execute(plan, workers, bars, trusted, keep, pages)
    finally:
        signal.signal(signal.SIGTERM, before)
        bars.close()


def _report(plan: Plan, studies: dict[str, Study], state: State, claims: Claims | None) -> None:
    from ..report import comparison_rows, write_comparison
    from .page import write_method_pages, write_study
    from .results import FILE, results_of, write_results
    from .tables import print_claims, print_groups, print_table

    asked = {name: study.figures for name, study in studies.items()}
    results = results_of(plan, state.done, state.failed, claims, asked)
    pages: dict[str, Path] = {}
    for experiment in results.experiments:
        done = [each for each in plan.of(experiment.name) if each.address in state.done]
        if not done:
            continue
        runs = [read_run(each.path) for each in done]
        if len(studies) > 1:
            say(f"\n{experiment.name}: {experiment.title}")
        if len(runs) <= MANY:
            print_table(comparison_rows(runs))
        print_groups(experiment.groups, list(asked[experiment.name]))
        place = done[0].path.parent / "report.html"
        pages[experiment.name] = write_comparison(runs, place, experiment.title)
        say(f"report: {place}")
    write_results(results, plan.output / FILE)
    if len(plan.titles) > 1:
        name, word = "report.html", "report of all"
    else:
        name, word = (WHOLE, "methods") if claims is None else (DECIDED, "claims")
        for other in {WHOLE, DECIDED} - {name}:  # left by an earlier call, for other runs
            (plan.output / other).unlink(missing_ok=True)
    title = called(plan.output).capitalize().replace("_", " ")
    of_methods = write_method_pages(plan, studies, results, plan.output / name)
    facts = _facts(plan, state)
    page = write_study(results, plan.output / name, title, pages, facts, of_methods)
    if claims is not None:
        say()
        print_claims(results)
    say(f"{word}: {page}")


def _facts(plan: Plan, state: State) -> list[tuple[str, str]]:
    machine = ("platform", "processors", "processor", "instructions")
    words = ("entrostat", "torch", "commit", *machine, "gpus")
    found: dict[str, set[str]] = {word: set() for word in words}
    seconds = 0.0
    for address in state.done:
        path = plan.trainings[address].path
        seconds += sum(read_run(path).series("time/iteration")[1])
        about = read_json(path / "environment.json")
        versions = about.get("versions")
        said = about | (versions if isinstance(versions, dict) else {})
        said["commit"] = str(about.get("git") or "")[:12]
        for word in words:
            texts = said.get(word)
            several = texts if isinstance(texts, list) else [texts]
            found[word].update(str(text) for text in several if text)
    facts = [("runs", f"{sum(n.address in state.done for n in plan.named)} of {len(plan.named)}")]
    facts.append(("trainings", f"{len(state.done)} of {len(plan.trainings)}"))
    facts.append(("time of training", duration(seconds)))
    for word, texts in found.items():
        if texts:
            more = len(texts) - _MANY_FACTS
            few = ", ".join(sorted(texts)[:_MANY_FACTS])
            facts.append((word, few + (f" and {more} more" if more > 0 else "")))
    return facts
