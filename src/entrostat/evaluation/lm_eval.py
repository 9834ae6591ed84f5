"""Export of results and responses in the format of lm-evaluation-harness.

Each model has a directory with `results_DATE.json` and `samples_SET_DATE.jsonl`, the layout of
`EvaluationTracker` (0.4). Standard errors use the bootstrap's normal approximation: the width of
the 95% interval over 3.92.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from .._version import __version__
from ..logs.files import atomic, make_directory
from ..logs.lines import JsonLines
from .results import of_problem, shown

DIRECTORY = "lm_eval"
_WIDTH = 2 * 1.959963984540054  # standard errors in a 95% interval
VERSION = 1


def export(directory: Path, results: Mapping[str, Any]) -> Path:
    """Write a model's evaluation in lm-eval's format; replaces an earlier export.

    `directory` contains `results.json`, with the content `results`, and `responses/`.
    """
    place = directory / DIRECTORY / _safe(str(results["model"]))
    make_directory(place)
    for old in (*place.glob("results_*.json"), *place.glob("samples_*.jsonl")):
        old.unlink()
    date = datetime.now().isoformat().replace(":", "-")
    safe = [re.sub(r"\W", "_", name) for name in results["sets"]]
    for i, name in enumerate(safe):
        safe[i] = f"{name}_{i + 1}" if name in safe[:i] else name
    names = dict(zip(results["sets"], safe, strict=True))
    with atomic(place / f"results_{date}.json") as part:
        found = aggregated(results, names) | {"total_evaluation_time_seconds": "0.0"}
        part.write_text(json.dumps(found, indent=2, ensure_ascii=False), encoding="utf-8")
    for name, entry in results["sets"].items():
        every = JsonLines(directory / entry["responses"]).read()
        lines = [line for line in every if line["problem"] < entry["n"]]
        with atomic(place / f"samples_{names[name]}_{date}.jsonl") as part:
            rows = (json.dumps(row) + "\n" for row in samples(entry, lines))
            part.write_text("".join(rows), encoding="utf-8")
    return place


def aggregated(results: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    sets = {names[name]: entry for name, entry in results["sets"].items()}
    return {
        "results": {name: _figures(name, entry) for name, entry in sets.items()},
        "group_subtasks": {name: [] for name in sets},
        "configs": {name: _config(name, entry) for name, entry in sets.items()},
        "versions": dict.fromkeys(sets, VERSION),
        "n-shot": dict.fromkeys(sets, 0),
        "higher_is_better": {
            name: dict.fromkeys(_metrics(entry["k"]), True) for name, entry in sets.items()
        },
        "n-samples": {
            name: {"original": entry["n"], "effective": entry["n"]} for name, entry in sets.items()
        },
        "config": dict.fromkeys(("batch_size", "device", "limit", "gen_kwargs"))
        | {
            "model": "entrostat",
            "model_args": f"pretrained={results['model']}",
            "random_seed": next((e["settings"]["seed"] for e in sets.values()), 0),
        },
        "git_hash": None,
        "entrostat_version": __version__,
        "model_source": "entrostat",
        "model_name": results["model"],
        "model_name_sanitized": _safe(str(results["model"])),
        "task_hashes": {},
    }


def samples(
    entry: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    metrics = _metrics(entry["k"])
    arguments = _generation(entry["settings"])
    for line in lines:
        target = line["answer"] if isinstance(line["answer"], str) else json.dumps(line["answer"])
        prompt = line["prompt"].encode("utf-8", "replace").decode()
        figures = of_problem(line)
        yield {
            "doc_id": line["problem"],
            "doc": {"prompt": prompt, "answer": target},
            "target": target,
            "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": arguments}},
            "resps": [line["responses"]],
            # lm-eval's marker for a filter without result
            "filtered_resps": [one or "[invalid]" for one in line["extracted"]],
            "filter": "none",
            "metrics": metrics,
            **{
                f"{name}_hash": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
                for name, text in (("doc", prompt + target), ("prompt", prompt), ("target", target))
            },
            **{metric: figures.get(metric) for metric in metrics},
        }


def _metrics(k: int) -> list[str]:
    return [f"avg@{k}", *(f"pass@{j}" for j in shown(k)), f"maj@{k}"]


def _figures(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"alias": name}
    for metric in _metrics(entry["k"]):
        figure = entry["metrics"].get(metric)
        if figure is None or figure["value"] is None:
            continue
        low, high = figure["low"], figure["high"]
        found[f"{metric},none"] = figure["value"]
        found[f"{metric}_stderr,none"] = "N/A" if low is None else (high - low) / _WIDTH
    return found


def _config(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    own = entry["settings"]
    return {
        "task": name,
        "dataset_path": own["task"],
        "test_split": own["split"],
        "output_type": "generate_until",
        "num_fewshot": 0,
        "repeats": entry["k"],
        "generation_kwargs": _generation(own),
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True}
            for metric in _metrics(entry["k"])
        ],
        "metadata": {"version": VERSION},
    }


def _generation(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "until": settings["stop"],
        "do_sample": not settings["greedy"],
        "temperature": 0.0 if settings["greedy"] else settings["temperature"],
        "top_p": settings["top_p"],
        "max_gen_toks": settings["max_new_tokens"],
    }


def _safe(name: str) -> str:
    return re.sub(r"[\"<>:/|\\?*\[\]]+", "__", name)
