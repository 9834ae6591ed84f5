"""`entrostat eval`: evaluate every model on every set, in batches of problems, saved once scored.

Each sample has its own random numbers, seeded by (seed, set, problem, sample). So neither other
problems nor more samples change it, except by rounding: the last bits of a matrix product depend on
its number of rows, which can change a token if its random number is at the boundary between two. A
resumed evaluation uses the same batches, and so ends with bitwise identical metrics.

`evaluation.json` records model and settings, so that responses of different settings never mix.
`responses/SET.jsonl` gets one line per problem. A line cut short by a kill is dropped, and its
problem is repeated.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..config import TrainConfig
from ..errors import need
from ..logs.files import make_directory, replacing
from ..logs.lines import JsonLines, read_json
from ..runs.run_directory import hold
from ..tasks import Example, Task
from .canonical import extracted, forms, votes
from .lm_eval import export
from .models import (
    Answered,
    Asked,
    EvaluatedModel,
    ProblemSet,
    evaluated_models,
    of_task,
    problem_sets,
)
from .progress import Display
from .results import figures
from .settings import Decoding, EvalConfig

if TYPE_CHECKING:
    from ..data.scoring import Scorer

RESULTS, SETTINGS = "results.json", "evaluation.json"


class Sampler(Protocol):
    def __call__(self, asked: Asked, on_tokens: Callable[[int], None]) -> list[Answered]: ...

    def settings(self, one: ProblemSet, decoding: Decoding) -> dict[str, Any]:
        """Resolved settings of a set, as plain data: `max_new_tokens`, `stop`, `chat`, ..."""
        ...

    def identity(self) -> dict[str, Any]:
        """Data that identifies the policy; empty if unknown."""
        ...


def settings_of(one: ProblemSet, config: EvalConfig, sampler: Sampler) -> dict[str, Any]:
    decoding = config.decoding(one.task_name)
    return (
        {"task": one.task_name, "split": one.split, "options": plain(dict(one.options))}
        | asdict(decoding)
        | {"seed": config.seed, "engine": config.engine, "preset": config.preset}
        | {"base": config.base, "cluster_distance": config.cluster_distance}
        | sampler.settings(one, decoding)
    )


def run_set(
    one: ProblemSet, config: EvalConfig, sampler: Sampler, score: Scorer, store: Store,
    display: Display,
) -> dict[str, Any]:  # fmt: skip
    """Sample the missing problems of a set; returns its entry in results.json.

    Existing responses must have the same settings and problems.
    """
    from ..data.prompts import example  # loads torch, which `plan` does not need

    settings = settings_of(one, config, sampler)
    responses = store.begin(one, settings)
    decoding, count = config.decoding(one.task_name), one.count(config.problems)
    for i, line in responses.lines.items():
        if i < count and not _is_of(line, example(one.task, i, one.split)):
            raise ValueError(
                f"{responses.path} holds responses to another problem {i} than {one.name} has now; "
                "choose another --output, or remove that file"
            )
    group = max(1, config.batch // decoding.k)
    display.problems(len(responses.first(count)), count)
    for first in range(0, count, group):
        problems = range(first, min(first + group, count))
        missing = {*problems} - responses.lines.keys()
        if not missing:
            continue
        # the whole group, for bitwise identical results
        examples = [example(one.task, i, one.split) for i in problems]
        asked = Asked(one, decoding, problems, examples, config.seed)
        answered = sampler(asked, display.tokens)
        lines = _lines(asked, answered, score)
        responses.add([line for line in lines if line["problem"] in missing])
        display.problems(len(responses.first(count)), count)
    lines = responses.first(count)
    return {
        "settings": settings,
        "metrics": figures(lines, config.resamples, config.seed, one.name),
        "n": len(lines),
        "k": decoding.k,
        "responses": f"responses/{one.file}",
    }


def _is_of(line: Mapping[str, Any], example: Example) -> bool:
    """Whether a line belongs to this problem; an answer that is not JSON is not compared."""
    answer = plain(example.answer)
    told = type(answer) is type(example.answer)  # else `plain` made it a string
    return line.get("prompt") == example.prompt and (not told or line.get("answer") == answer)


def _lines(asked: Asked, answered: Sequence[Answered], score: Scorer) -> list[dict[str, Any]]:
    """Lines of a group; scored in one call, unless environments gave the scores."""
    k = asked.decoding.k
    if answered[0].scores is None:
        texts = [text for one in answered for text in one.responses]
        given = score(texts, [e for e in asked.examples for _ in range(k)], 0).tolist()
        failed = Counter(place // k for place in score.failures)
        answered = [
            replace(one, scores=given[i * k : (i + 1) * k], failed=failed[i])
            for i, one in enumerate(answered)
        ]
    each = zip(asked.problems, asked.examples, answered, strict=True)
    return [line_of(asked.set.task, problem, example, one) for problem, example, one in each]


def line_of(task: Task, problem: int, example: Example, one: Answered) -> dict[str, Any]:
    """One problem's line of `responses/SET.jsonl`: the responses and their answers.

    `forms` are the canonical forms, `votes` the votes in maj@k (`canonical.votes`), `extracted` the
    answers that the grader compares.
    """
    scores = [float(s) for s in one.scores or ()]
    return {
        "problem": problem,
        "prompt": example.prompt,
        "answer": plain(example.answer),
        **vars(one),
        "scores": scores,
        "forms": forms(task, one.responses),
        "votes": votes(task, one.responses, scores),
        "extracted": extracted(task, one.responses),
    }


def plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return str(value)


class Store:
    """Directory of one model's evaluation, locked against other processes until closed.

    `threads` is the number of CPU threads; 0 if it was not set.
    """

    def __init__(self, directory: Path, subject: Mapping[str, Any], threads: int = 0) -> None:
        self.path = directory
        self._lock = hold(directory, "another process is evaluating there")
        make_directory(directory / "responses")
        self._kept = read_json(directory / SETTINGS)
        changed = _changed(self._kept.setdefault("subject", dict(subject)), subject)
        if changed:
            self._lock.close()
            raise ValueError(
                f"output {str(directory)!r} holds responses of another model ("
                f"{', '.join(changed)} differs); choose another --output, or remove it"
            )
        self._kept["threads"] = threads

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def begin(self, one: ProblemSet, settings: Mapping[str, Any]) -> Responses:
        known = self._kept.setdefault("sets", {})
        now = json.loads(json.dumps(settings))
        before = known.get(one.name, now)
        if changed := _changed(before, now):
            words = [f"{key} is {now.get(key)!r}, was {before.get(key)!r}" for key in changed[:3]]
            raise ValueError(
                f"output {str(self.path)!r} holds responses of {one.name} under other settings: "
                f"{', '.join(words)}; choose another --output"
            )
        known[one.name] = now
        self.write(SETTINGS, self._kept)
        return Responses(self.path / "responses" / one.file)

    def write(self, name: str, value: Any) -> None:
        with replacing(self.path / name) as part:
            text = json.dumps(value, indent=1, allow_nan=False)
            part.write_text(text + "\n", encoding="utf-8")


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in {*before, *now} if before.get(key) != now.get(key))


def keep_choices(config: EvalConfig, directory: Path) -> None:
    """Take what an earlier evaluation here chose, where `config` leaves it open.

    Threads and precision are chosen by measurement, which another time may end otherwise.
    """
    kept = read_json(directory / SETTINGS)
    threads = kept.get("threads")
    if not config.threads and type(threads) is int and 0 <= threads <= 1024:
        config.threads = threads
    for settings in kept.get("sets", {}).values() if config.precision == "auto" else ():
        config.precision = settings["precision"]


class Responses:
    def __init__(self, path: Path) -> None:
        self.path, self._log = path, JsonLines(path)
        rows = self._log.readable()
        self.lines = {row["problem"]: row for row in rows if type(row.get("problem")) is int}
        whole = "".join(json.dumps(line) + "\n" for line in self.lines.values()).encode()
        if path.exists() and path.read_bytes() != whole:  # drop damaged lines
            with replacing(path) as part:
                part.write_bytes(whole)

    def add(self, lines: Sequence[dict[str, Any]]) -> None:
        """Append lines of answered problems; earlier lines stay intact."""
        self._log.append(lines)
        self.lines |= {line["problem"]: line for line in lines}

    def first(self, count: int) -> list[dict[str, Any]]:
        return [self.lines[i] for i in range(count) if i in self.lines]


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
    """Evaluate; returns the root directory, and each model's directory and results.

    Responses sampled before an error are kept.
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

    keep_choices(config, directory)  # for bitwise identical results
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
