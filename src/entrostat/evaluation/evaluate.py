"""`entrostat eval`: subjects times sets, with what it shows and what it leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import TrainConfig
from ..errors import need
from ..logs.files import make_directory
from ..logs.lines import read_json
from .lm_eval import export
from .models import EvaluatedModel, ProblemSet, evaluated_models, of_task, problem_sets
from .progress import Display
from .runner import RESULTS, Store, run_set, threads_of
from .settings import EvalConfig


def plan(
    specs: Sequence[str], config: EvalConfig, options: Mapping[str, Any], checkpoints: bool = False,
    check: Callable[[TrainConfig], None] = lambda config: None,
) -> tuple[list[EvaluatedModel], list[ProblemSet]]:  # fmt: skip
    config.validate()
    subjects = evaluated_models(specs, checkpoints)
    if config.engine == "vllm" and len(subjects) > 1:
        raise ValueError("--engine vllm holds one model in a process: evaluate one per command")
    if config.on:
        return subjects, problem_sets(config.names(), options)
    if options:
        raise ValueError("--task.KEY is a parameter of the sets: name them, --on NAME")
    tasks = []
    for one in subjects:
        if one.config is None:
            raise ValueError(f"{one.spec!r}: evaluate it on what? --on NAME, or several: NAME,NAME")
        check(one.config)
        tasks.append({key: value for key, value in one.config.task.items() if key != "seed"})
        if tasks[-1] != tasks[0]:
            raise ValueError(
                f"{one.spec!r} was trained on {tasks[-1]['name']!r}, {subjects[0].spec!r} on "
                f"{tasks[0]['name']!r}: say on what to evaluate them, --on NAME"
            )
    return subjects, of_task(tasks[0])


def run_evaluation(
    subjects: Sequence[EvaluatedModel],
    sets: Sequence[ProblemSet],
    config: EvalConfig,
    display: Display,
) -> tuple[Path, list[tuple[Path, dict[str, Any]]]]:
    """Evaluate; the directory, and for each subject its own directory and results.

    What was answered before an error is kept.
    """
    need("eval", "entrostat eval", "sacrebleu")
    root = Path(config.output or "runs/eval")
    if not config.output and len(subjects) == 1:
        root = root / subjects[0].name
    try:
        make_directory(root)
    except OSError as error:
        raise ValueError(f"output {str(root)!r}: {error.strerror}") from None
    results, base = [], None
    if config.base:
        from .evaluator import load

        (model,) = evaluated_models([config.base])
        display.note(f"base: {config.base}")
        base = load(model, copy.deepcopy(config), display.note)
    for one in subjects:
        directory = root if len(subjects) == 1 else root / one.name
        display.note(one.spec)
        found = _evaluate(one, sets, copy.deepcopy(config), directory, display, base)
        export(directory, found)
        results.append((directory, found))
    return root, results


def _evaluate(
    subject: EvaluatedModel, sets: Sequence[ProblemSet], config: EvalConfig, directory: Path,
    display: Display, base: Any,
) -> dict[str, Any]:  # fmt: skip
    from ..data.scoring import Scorer

    config.threads = config.threads or threads_of(directory)  # as before, to the last bit
    if config.engine == "vllm":
        from .vllm import VllmSampler

        sampler = VllmSampler.of(subject, config, display.note)
    else:
        from .evaluator import LabSampler, load

        sampler = LabSampler(load(subject, config, display.note), config, subject, base)
    with Store(directory, sampler.identity() or subject.facts(), config.threads) as store:
        found = dict(read_json(directory / RESULTS).get("sets", {}))
        for one in sets:
            with Scorer(one.task, config.scoring, display.note) as score:
                display.begin(one.name)
                found[one.name] = run_set(one, config, sampler, score, store, display)
                display.end(one.name, found[one.name])
            store.write(RESULTS, subject.facts() | {"sets": found})
    return subject.facts() | {"sets": found}
