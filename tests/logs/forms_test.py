"""Forms in which trainers, trackers and people leave a run: each says the same of 40 steps.

Names and layouts are those of the trainers' own code: AReaL's box of figures (`stats_logger.py`),
NeMo-RL's "Training Results" (`grpo.py`), EasyR1's YAML (`ConsoleLogger`), torchtune's `DiskLogger`,
ROLL's JSON after a prefix, SkyRL's console, LLaMA-Factory's `trainer_log.jsonl`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders import refused
from entrostat.diagnosis import diagnose
from entrostat.logs.importers import read, read_all

N = range(1, 41)
H = [round(0.9 - 0.02 * i, 4) for i in N]
SCORES = [round(0.2 + 0.01 * i, 4) for i in N]
STEPS = list(zip(N, H, SCORES, strict=True))


def write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
    return path


def notebook(path: Path, *outputs: dict[str, Any]) -> Path:
    cells = [{"cell_type": "code", "source": [], "outputs": [each]} for each in outputs]
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}, indent=1))
    return path


AREAL = (
    "20260101-12:00:00.123 StatsLogger INFO: Epoch {e}/4 Step {k}/10 Train step {i}/40 done.\n"
    "\x1b[37m╒═════════╤════════╕\x1b[0m\n"
    "│ ppo_actor/update/entropy/avg │ {h:.4e} │ ppo_actor/update/lr │ 5.0000e-06 │\n"
    "│ ppo_actor/task_reward/avg │ {s:.4e} │ ppo_actor/seq_len/avg │ 8.1e+02 │"
)
EASYR1 = (
    "(Runner pid=7) Step {i}\n(Runner pid=7) actor:\n(Runner pid=7)   entropy_loss: {h}\n"
    "(Runner pid=7) critic:\n(Runner pid=7)   score:\n(Runner pid=7)     max: 1.0\n"
    "(Runner pid=7)     mean: {s}"
)
DEEPSPEED_CHAT = (
    "|E2E latency=2.12s |Gather latency=0.00s (0.00%) |CurSamplesPerSec=1.89\n"
    "epoch: 0|step: {i}|ppo_ep: 1|act_loss: 0.0254\naverage reward score: {s}\n"
    "entropy: {h}\n-----------------------------------"
)
DEEPRM = (
    "-----------------\nIteration: \t {i}\nNumTrajs: \t 200\nMaxRew: \t 9.5\n"
    "MeanRew: \t {s} +- 63.19\nMeanEntropy \t {h}\nElapsed time\t 106.07 seconds"
)
TORCHFORGE = (
    "=== [global_logger_r0] - METRICS STEP {i} ===\n  loss/entropy: {h}\n"
    "  reward/evaluate_response/avg_MathReward_reward: 0.1\n"
    "  reward/evaluate_response/avg_total_reward: {s}\n==================="
)
LINES = {
    "AReaL": ("AReaL", AREAL),
    "EasyR1": ("veRL", EASYR1),
    "torchtune": ("a table", "Step {i} | rewards:{s} loss:0.01 entropy:{h} lr:1e-06 "),
    "ROLL": ("ROLL", '[2026-01-01 12:00:00] [INFO] [DRIVER 0 / 1][PID 4] {{"system/step": {i}, '
             '"actor/entropy@sum": {h}, "critic/score/mean": {s}}}'),
    "SkyRL": ("SkyRL", "(skyrl pid=8) step:{i} - policy/policy_entropy:{h} - policy/final_loss:0.1 "
              "- reward/avg_raw_reward:{s}"),
    "in brackets": ("a table", "[step={i} tag=math] policy_loss=-0.1, entropy={h}, reward={s}"),
    "a clock": ("a table", "[2026-01-01 12:00:00] step {i}: entropy {h}, reward {s}"),
    "logging": ("a table", "INFO:__main__:Iteration {i}: entropy = {h}, mean reward = {s}"),
    "episodes": ("a table", "Episode {i} | Avg Return: {s} | Entropy: {h} | V_loss: 2.3"),
    "a bar": ("a table", "Training:  5%|█   | {i}/40 [00:10<01:00, 1.2s/it, loss=0.1, reward={s}, "
              "entropy={h}]"),
    "of how many": ("a table", "   {i}/40  entropy={h}  reward={s}  lr=1e-6"),
    "of how many, padded": ("a table", "[{i:>3}/40] reward={s} entropy={h}"),
    "parted by blanks": ("a table", "step {i}: reward: {s} entropy: {h}"),
    "parted by tabs": ("a table", "Episode {i}\tReward: {s}\tEntropy: {h}"),
    "no colons": ("a table", "Iter {i}: loss 0.01 reward {s} entropy {h}"),
    "heavy lines": ("a table", "Step {i:>3} ┃ reward {s} ┃ entropy {h} ┃ len 200"),
    "steps of an epoch": ("a table", "epoch {e} | step {k} | reward {s} | entropy {h}"),
    "open-instruct": ("open-instruct", "╭── metrics ──╮\n│ training_step │ {i} │\n"
                      "│ policy/entropy_avg │ {h} │\n│ objective/scores │ {s} │\n╰──╯"),
    "a dictionary": ("a table", "{{'step': {i}, 'entropy': {h}, 'mean_reward': {s}}}"),
    "aligned": ("a table", "{i:>6} {i:4}  {h:8.4f}  {s:8.4f}"),
    "a comma for the point": ("a table", "{i};{hc};{sc}"),
    "an error beside it": ("a table", "| {i} | {h} ± 0.02 | {s:.2%} |"),
    "no bars at the ends": ("a table", "{i} | 0.000100 | {s} | {h}"),
    "psql's": ("a table", " {i:>4} | {h:>7} | {s:>6}"),
    "drawn": ("a table", "| {i:>4} | {h:>7} | {s:>6} |\n+------+---------+--------+"),
    "rich's": ("a table", "│ {i:>4} │ {h:>7} │ {s:>6} │"),
    "under dashes": ("a table", "{i:>6}  {h:>9}  {s:>8}"),
    "a tag": ("a table", "[math] {i:>3}/40 | entropy={h} | reward={s}"),
    "a tag before a name": ("a table", "[trainer] epoch=0 step={i} entropy={h} reward={s}"),
    "DeepSpeed-Chat": ("a table", DEEPSPEED_CHAT),
    "DeepRM": ("a table", DEEPRM),
    "torchforge": ("a table", TORCHFORGE),
    "mlx-lm": ("a table", "Iter {i}: Train loss 0.000, Total rewards mean {s}, "
               "Total rewards std 0.1, Grouped rewards mean 0.9, Entropy {h}, It/sec 0.03"),
    "LLaMA-Factory": ("a table", '{{"current_steps": {i}, "total_steps": 40, "loss": 0.1, '
                      '"reward": {s}, "entropy": {h}}}'),
    "a message": ("veRL", '{{"level": 30, "time": 1700000000, "msg": "step:{i} - actor/entropy:{h} '
                  '- critic/score/mean:{s}"}}'),
    "a message beside figures": ("a table", '{{"level": "INFO", "message": "train metrics", '
                                 '"metrics": {{"step": {i}, "entropy": {h}, "reward": {s}}}}}'),
    "AReaL's JSON lines": ("AReaL", '{{"epoch": 0, "epoch_step": {k}, "global_step": {i}, "stats": '
                           '{{"ppo_actor/update/entropy/avg": {h}, '
                           '"ppo_actor/task_reward/avg": {s}}}}}'),
}  # fmt: skip
HEADERS = {
    "aligned": "       step   entropy   reward",
    "a comma for the point": "step;entropy;reward",
    "no bars at the ends": "Why?\n\nStep | Training Loss | reward | entropy\n-- | -- | -- | --",
    "psql's": " step | entropy | reward\n------+---------+--------",
    "drawn": "+------+---------+\n| step | entropy | reward |\n+======+=========",
    "rich's": "┏━━━━━━┳━━━━━━━┳━━━━━━┓\n┃ Step ┃ Entropy ┃ Reward ┃\n┡━━━━━━╇━━━━━━╇━━━━━━━━┩",
    "under dashes": "  step    entropy    reward\n------  ---------  --------",
    "an error beside it": "| step | entropy | accuracy |\n| --- | --- | --- |",
}


@pytest.mark.parametrize("form", LINES)
def test_lines_of_a_console_or_a_table(form, tmp_path):
    source, line = LINES[form]
    rows = [
        line.format(i=i, k=(i - 1) % 10 + 1, e=(i - 1) // 10 + 1, h=h, s=s,
                    hc=str(h).replace(".", ","), sc=str(s).replace(".", ","))
        for i, h, s in STEPS
    ]  # fmt: skip
    run = read(write(tmp_path / "log", *filter(None, [HEADERS.get(form)]), *rows))
    assert run.source == source
    name = "entropy/exact" if source == "veRL" else "entropy/logged"
    assert run.series(name) == (list(N), pytest.approx(H))
    assert run.series("reward/mean") == (list(N), pytest.approx(SCORES))


@pytest.mark.parametrize(
    ("header", "line"),
    [
        (None, "Step {i:,}: reward={s}, entropy={h}"),
        (None, "[{i:,}/16,000] reward={s} entropy={h}"),
        ("step,entropy,reward", '"{i:,}",{h},{s}'),
    ],
)
def test_commas_in_a_step(header, line, tmp_path):
    rows = [line.format(i=400 * i, h=h, s=s) for i, h, s in STEPS]
    run = read(write(tmp_path / "a.csv", *filter(None, [header]), *rows))
    assert run.series("entropy/logged") == ([400 * i for i in N], H)
    assert run.series("reward/mean")[1] == SCORES


def test_each_figure_of_a_line_has_its_own_name(tmp_path):
    """Without the counter before it and the unit of the figure before; 0,5 is no 0."""
    line = "[ {i}/40] time: 40.0s mean reward: {s} entropy: {h} kl: 0,5"
    run = read(write(tmp_path / "a.log", *(line.format(i=i, h=h, s=s) for i, h, s in STEPS)))
    assert set(run.names) == {"iteration", "time", "reward/mean", "entropy/logged"}


def test_an_epoch_that_falls_begins_another_run(tmp_path):
    line = "epoch {e} | step {k} | reward {s} | entropy {h}"
    rows = [line.format(e=(i - 1) // 10 % 2, k=10 * ((i - 1) % 10), h=h, s=s) for i, h, s in STEPS]
    runs, _ = read_all(write(tmp_path / "a.log", *rows))
    assert [run.series("entropy/logged") for run in runs] == [
        ([*range(0, 200, 10)], H[:20]), ([*range(0, 200, 10)], H[20:]),
    ]  # fmt: skip


def test_nemo_rls_console_has_no_entropy_and_says_where_it_is(tmp_path):
    block = (
        "========== Step {i}/40 ==========\n▶ Generating responses for batch of size 512...\n"
        "Collecting rollouts: 100%|██████████| 512/512 [00:10<00:00, 4.00it/s]\n"
        "📊 Training Results:\n  • Loss: 0.01\n  • Generation KL Error: 0.001\n"
        "  • Avg Reward: {s}\n  • Mean Generation Length: 500.0\n\n⏱️  Timing:\n"
        "  • Total step time: 61.20s\n  • policy_training: 20.10s (32.8%)"
    )
    path = write(tmp_path / "a.log", *(block.format(i=i, s=s) for i, _, s in STEPS))
    found = diagnose(path)
    assert (found.source, found.verdict) == ("NeMo-RL", "cannot tell")
    assert read(path).series("reward/mean")[1] == SCORES
    assert read(path).series("rollout/length_mean")[1] == [500.0] * 40
    assert "train/approx_entropy" in str(found)


def test_two_steps_of_a_console_are_read(tmp_path):
    block = "==== Step {i}/9 ====\n  • Avg Reward: {s}"
    run = read(write(tmp_path / "a.log", *(block.format(i=i, s=s) for i, _, s in STEPS[:2])))
    assert run.series("reward/mean") == ([1, 2], SCORES[:2])


def test_a_tag_is_no_part_of_a_name(tmp_path):
    line = "[trainer] epoch=0 step={i} entropy={h}"
    run = read(write(tmp_path / "a.log", *(line.format(i=i, h=h) for i, h, _ in STEPS)))
    assert set(run.names) == {"iteration", "epoch", "entropy/logged"}


def test_a_value_that_a_notebook_did_not_log_is_no_fault(tmp_path):
    rows = [f"{i} | {h if i % 2 else 'No Log'} | {s}" for i, h, s in STEPS]
    run = read(write(tmp_path / "a.md", "Step | entropy | reward", "-- | -- | --", *rows))
    assert run.series("entropy/logged") == (list(N[::2]), H[::2])
    assert run.problems == ()


def test_a_name_that_a_block_has_twice_is_no_figure_of_the_step(tmp_path):
    """Rewards of single answers, printed between the steps."""
    block = "Step {i}\nreward: 1.0\nreward: 0.0\nentropy: {h}"
    run = read(write(tmp_path / "a.log", *(block.format(i=i, h=h) for i, h, _ in STEPS)))
    assert run.series("entropy/logged")[1] == H
    assert "reward/mean" not in run.names


def test_prose_is_no_log(tmp_path):
    text = ["step 1 of the plan", "entropy 0.5 was seen", "step 2 of the plan", "done"]
    refused(lambda: read(write(tmp_path / "a.txt", *text)), "not recognised")


def test_names_and_values_in_the_long_form(tmp_path):
    """tbparse's and other exports: a row a value."""
    rows = [f"exp/{run},{tag},{i},{v}" for run in "ab" for tag, values in
            (("actor/entropy", H), ("critic/score/mean", SCORES))
            for i, v in zip(N, values, strict=True)]  # fmt: skip
    runs, _ = read_all(write(tmp_path / "a.csv", "run,tag,step,value", *rows))
    assert [run.name for run in runs] == ["exp/a", "exp/b"]
    assert {run.source for run in runs} == {"veRL"}
    assert runs[1].series("entropy/exact") == (list(N), H)
    assert runs[1].series("reward/mean") == (list(N), SCORES)


def test_a_list_of_columns_without_a_step_is_counted(tmp_path):
    run = read(write(tmp_path / "a.json", {"entropy": H, "reward": SCORES, "loss": [0.1] * 40}))
    assert run.series("entropy/logged") == (list(N), H)


def test_of_two_lists_the_one_of_the_steps_is_read(tmp_path):
    steps = [{"iteration": i, "policy_entropy": h, "avg_reward": s} for i, h, s in STEPS]
    evals = [{"iteration": i, "acc": 0.5} for i in (10, 20)]
    run = read(write(tmp_path / "a.json", {"config": {"lr": 1}, "evals": evals, "steps": steps}))
    assert run.series("entropy/logged") == (list(N), H)


@pytest.mark.parametrize("beside", [{}, {"evals": [{"iteration": 10, "acc": 0.5}] * 9}])
def test_lists_of_steps_are_runs_under_their_keys(beside, tmp_path):
    lists = {
        name: [{"iteration": i, "entropy": c * h, "acc": s} for i, h, s in STEPS[:n]]
        for name, c, n in (("baseline", 2, 20), ("grpo", 1, 40))
    }
    runs, _ = read_all(write(tmp_path / "a.json", lists | beside))
    assert [(run.name, run.series("entropy/logged")[1]) for run in runs] == [
        ("baseline", [2 * h for h in H[:20]]), ("grpo", H),
    ]  # fmt: skip


@pytest.mark.parametrize("document", [lambda rows: rows, lambda rows: {"args": {}, "log": rows}])
@pytest.mark.parametrize("format", [None, "trl"])
def test_a_history_of_trls_in_one_line(document, format, tmp_path):
    names = ("step", "entropy", "reward")
    rows = [{"loss": 0.0, "completions/mean_length": 200.0} | dict(zip(names, step, strict=True))
            for step in STEPS]  # fmt: skip
    run = read(write(tmp_path / "a.json", document(rows)), format)
    name = "entropy/exact" if format else "entropy/logged"
    assert run.series(name) == (list(N), H)


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["method"], ["grpo", "sgd"]),
        (["method", "seed"], ["grpo 0", "grpo 1", "sgd 0", "sgd 1"]),
        (["run", "method"], ["a", "b"]),
        (["seed"], ["0", "1"]),
    ],
)
@pytest.mark.parametrize("by_step", [True, False])
def test_columns_that_tell_rows_of_a_step_apart_name_the_run(columns, names, by_step, tmp_path):
    """And a column of texts that does not tell them apart names none."""
    cells = [name.split() for name in names]
    methods = {"a": "grpo", "b": "sgd"}
    rows = [
        (i, k, ",".join([*(each if columns[0] != "run" else [*each, methods[each[0]]]),
                         "late" if i > 20 else "early", str(i), str((k + 1) * h), str(s)]))
        for k, each in enumerate(cells) for i, h, s in STEPS
    ]  # fmt: skip
    rows.sort(key=lambda row: row[0] if by_step else row[1])
    header = ",".join([*columns, "phase", "step", "entropy", "reward"])
    runs, _ = read_all(write(tmp_path / "a.csv", header, *(row for _, _, row in rows)))
    assert [run.name for run in runs] == names
    for k, run in enumerate(runs, 1):
        assert run.series("entropy/logged") == (list(N), [k * h for h in H])
        assert not any("more than once" in note for note in run.notes)


def test_the_name_of_a_run_may_change_late(tmp_path):
    rows = [f"{run},{i},{h},0.5" for run, h in (("a", 0.5), ("b", 0.25)) for i in range(1200)]
    runs, _ = read_all(write(tmp_path / "a.csv", "run,step,entropy,reward", *rows))
    assert [run.name for run in runs] == ["a", "b"]


def test_logs_of_two_trainers_in_one_folder_are_two_runs(tmp_path):
    trl = [{"loss": 0.0, "completions/mean_length": 9.0, "step": i, "entropy": h, "reward": s}
           for i, h, s in STEPS]  # fmt: skip
    write(tmp_path / "trl.jsonl", *trl)
    verl = [f"step:{i} - actor/entropy:{2 * h} - critic/score/mean:{s}" for i, h, s in STEPS]
    write(tmp_path / "verl.log", *verl)
    runs, _ = read_all(tmp_path)
    assert [(run.name, run.source) for run in runs] == [("trl.jsonl", "TRL"), ("verl.log", "veRL")]
    assert runs[1].series("entropy/exact")[1] == [2 * h for h in H]


def test_mlflows_file_store(tmp_path):
    write(tmp_path / "mlruns/0/3f2a/meta.yaml", "run_name: bold-carp-1")
    for tag, values in (("actor/entropy", H), ("critic/score/mean", SCORES)):
        rows = [f"17000000{i:05d} {v} {i}" for i, v in zip(N, values, strict=True)]
        write(tmp_path / "mlruns/0/3f2a/metrics" / tag, *rows)
    (run,), _ = read_all(tmp_path)
    assert run.source == "veRL"
    assert run.series("entropy/exact") == (list(N), H)
    assert run.series("reward/mean") == (list(N), SCORES)


@pytest.mark.parametrize("json_", [False, True])
def test_a_series_is_called_by_its_file(json_, tmp_path):
    """TensorBoard's exports, renamed."""
    rows = [[1.7e9 + i, i, h] for i, h, _ in STEPS]
    for name in ("train_entropy", "x"):
        header = [] if json_ else ["Wall time,Step,Value"]
        lines = [rows] if json_ else [",".join(map(str, row)) for row in rows]
        path = write(tmp_path / f"{name}.{'json' if json_ else 'csv'}", *header, *lines)
        if name == "x":
            refused(lambda path=path: read(path), "--entropy Value")
            assert read(path, columns={"entropy": "Value"}).series("entropy/logged")[1] == H
        else:
            assert read(path).series("entropy/logged") == (list(N), H)


def test_what_a_notebook_printed(tmp_path):
    rows = [str({"loss": 0.1, "reward": s, "completions/mean_length": 9.0, "entropy": h}) + "\n"
            for _, h, s in STEPS]  # fmt: skip
    html = "<table><tr><th>Step</th><th>entropy</th><th>reward</th></tr>" + "".join(
        f"<tr><td>{i}</td><td>{h}</td><td>{s}</td></tr>" for i, h, s in STEPS
    )
    stream = {"output_type": "stream", "name": "stdout", "text": rows}
    run = read(notebook(tmp_path / "a.ipynb", stream))
    assert run.source == "TRL"
    assert run.series("entropy/exact") == (list(N), H)
    other = html.replace("<td>0.", "<td>1.")
    tables = [{"output_type": "display_data", "data": {"text/html": [t]}} for t in (html, other)]
    runs, _ = read_all(notebook(tmp_path / "b.ipynb", *tables))
    assert [run.series("entropy/logged")[1][0] for run in runs] == [0.88, 1.88]


def test_a_column_of_another_name_is_offered(tmp_path):
    rows = [f"{i},{h},{s}" for i, h, s in STEPS]
    found = diagnose(write(tmp_path / "a.csv", "step,H,reward", *rows))
    assert "H: --entropy NAME" in found.headline
    path = write(tmp_path / "b.csv", "step,a-actor/entropy,b-actor/entropy", *rows)
    refused(lambda: read(path), "entropy that is surely it", "'a-actor/entropy'")
    ends = write(tmp_path / "c.csv", "Name,State,entropy,reward", "a,finished,0.1,0.5",
                 "b,finished,0.2,0.5")  # fmt: skip
    refused(lambda: read(ends), "no column for step", "export its history")


def test_a_run_that_ended_before_its_first_step_is_named(tmp_path):
    rows = [f"step:{i} - actor/entropy:{h} - critic/score/mean:{s}" for i, h, s in STEPS]
    write(tmp_path / "a.log", *rows)
    write(tmp_path / "b.log", "Traceback (most recent call last):", "ValueError: no data")
    runs, skipped = read_all(tmp_path)
    assert len(runs) == 1
    assert skipped == ("b.log: no step is logged",)
