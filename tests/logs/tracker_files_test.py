"""TensorBoard's event files and W&B's own, read as runs.

The files are written by the packages themselves: TensorBoard's here, W&B's offline in a process of
its own. What must come out are values chosen by hand, and of TRL's log what its trainer_state.json
says. Checksums are those of RFC 3720.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from builders import refused
from entrostat.cli import main
from entrostat.logs.importers import read as read_run
from entrostat.logs.importers import tensorboard, wandb
from entrostat.logs.importers.source import UnreadableError
from entrostat.logs.importers.wire import fields
from entrostat.logs.run import Run
from paths import TESTS

STATE = TESTS / "importers/trl/checkpoint-6/trainer_state.json"


def rewritten(entry: dict[str, Any]) -> dict[str, float]:
    """An entry of TRL's log as transformers' trackers give it away."""
    return {
        f"eval/{key[5:]}" if key.startswith("eval_") else f"train/{key}": value
        for key, value in entry.items()
        if key not in ("step", "train_runtime")
    }


def trl_log() -> list[dict[str, Any]]:
    return json.loads(STATE.read_text())["log_history"]


def events(folder: Path, *rows: tuple[int, dict[str, float]], **how: Any) -> Path:
    """Scalars as TRL, veRL and most others write them."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder), **how) as writer:
        for step, scalars in rows:
            for name, value in scalars.items():
                writer.add_scalar(name, value, step)
    (*_, newest) = sorted(folder.iterdir(), key=lambda p: (p.stat().st_mtime_ns, p.name))
    return newest


def attempt(path: Path) -> Run | None:
    """The run of a file; None where that is refused, in one line."""
    try:
        return read_run(path)
    except ValueError as error:
        line = str(error)
    assert "\n" not in line
    return None


def series(run: Run, key: str = "entropy/exact") -> list[tuple[int, float]]:
    return list(zip(*run.series(key), strict=True))


VERL = [
    (1, {"actor/entropy": 0.5, "critic/score/mean": 0.25, "response_length/mean": 100.0}),
    (2, {"actor/entropy": 0.375, "critic/score/mean": 0.5, "response_length/mean": 110.5}),
]
OURS = [(1, {"entropy/exact": 0.75, "reward/mean": 0.5, "optim/updates": 4.0}),
        (2, {"entropy/exact": 0.5, "reward/mean": 0.625, "optim/updates": 4.0})]  # fmt: skip
OTHER = [(1, {"loss/policy_entropy": 1.5, "charts/entropy": 2.0, "score": 0.5}),
         (2, {"loss/policy_entropy": 1.25, "charts/entropy": 1.0, "score": 0.75})]  # fmt: skip


# --- TensorBoard: whose figures they are ---


def test_trl_in_tensorboard_is_what_its_state_says(tmp_path: Path) -> None:
    entries = trl_log()
    events(tmp_path / "runs/Nov22", *[(entry["step"], rewritten(entry)) for entry in entries])
    run, expected = read_run(tmp_path / "runs"), read_run(STATE)
    assert (run.source, run.problems) == ("TRL through TensorBoard", ())
    assert run.entropy_is == expected.entropy_is
    assert len(run.metrics) == len(expected.metrics)
    for row, other in zip(run.metrics, expected.metrics, strict=True):
        for key in ("iteration", "entropy/exact", "reward/mean", "rollout/length_mean", "clip/low"):
            assert row.get(key) == pytest.approx(other.get(key), rel=1e-6), key
    assert "eval_entropy" in run.metrics[1]
    assert run.notes[0].startswith("An iteration is a generation batch, of 2 optimizer steps")


def test_verl_in_tensorboard(tmp_path: Path) -> None:
    run = read_run(events(tmp_path, *VERL))
    assert run.source == "veRL through TensorBoard"
    assert series(run) == [(1, 0.5), (2, 0.375)]
    assert series(run, "reward/mean") == [(1, 0.25), (2, 0.5)]
    assert series(run, "rollout/length_mean") == [(1, 100.0), (2, 110.5)]
    assert "does not say which loss_agg_mode" in run.entropy_is


def test_our_host_for_verl_has_its_own_figures(tmp_path: Path) -> None:
    rows = [(i, {**scalars, "entropy/exact": 0.625, "reward/mean": 1.0}) for i, scalars in VERL]
    run = read_run(events(tmp_path, *rows))
    assert series(run) == [(1, 0.625), (2, 0.625)]
    assert series(run, "actor/entropy") == [(1, 0.5), (2, 0.375)]
    assert "entrostat's host for veRL" in run.entropy_is


def test_ours_in_tensorboard(tmp_path: Path) -> None:
    run = read_run(events(tmp_path, (0, {"eval/test/avg@k": 0.25}), *OURS))
    assert run.source == "entrostat through TensorBoard"
    assert series(run) == [(1, 0.75), (2, 0.5)]
    assert series(run, "eval/test/avg@k") == [(0, 0.25)]
    assert run.entropy_is.startswith("exact: ")


def test_anyones_in_tensorboard(tmp_path: Path) -> None:
    run = read_run(events(tmp_path, *OTHER))
    assert run.source == "TensorBoard"
    assert series(run, "entropy/logged") == [(1, 2.0), (2, 1.0)]  # the one tag .../entropy
    assert series(run, "reward/mean") == [(1, 0.5), (2, 0.75)]
    run = read_run(tmp_path, columns={"entropy": "loss/policy_entropy"})
    assert series(run, "entropy/logged") == [(1, 1.5), (2, 1.25)]
    assert "cannot be known" in run.entropy_is


def test_no_entropy_and_no_score_is_said(tmp_path: Path) -> None:
    refused(lambda: read_run(events(tmp_path, (1, {"lr": 0.5}))), "'lr'")


def test_supervised_training_has_no_known_entropy(tmp_path: Path) -> None:
    run = read_run(events(tmp_path, (1, {"train/loss": 2.0, "train/entropy": 1.5})))
    assert series(run, "entropy/logged") == [(1, 1.5)]
    assert series(run) == []


# --- TensorBoard: the files ---


def test_scalars_of_tensorflow_are_tensors(tmp_path: Path) -> None:
    import numpy as np
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    writer = EventFileWriter(str(tmp_path))
    tensors = {
        "entropy/exact": np.float32(0.5), "optim/updates": np.int64(4), "f64": np.float64(0.1),
        "i32": np.int32(-7), "text": "hello", "matrix": np.eye(2), "half": np.float16(0.5),
    }  # fmt: skip
    values = [Summary.Value(tag=k, tensor=make_tensor_proto(v)) for k, v in tensors.items()]
    values.append(Summary.Value(tag="content", tensor=make_tensor_proto(np.float32(0.25))))
    values[-1].tensor.ClearField("float_val")
    values[-1].tensor.tensor_content = struct.pack("<f", 0.25)
    writer.add_event(Event(step=3, summary=Summary(value=values)))
    writer.close()
    (row,) = read_run(tmp_path).metrics
    assert row == {
        "iteration": 3, "entropy/exact": 0.5, "optim/updates": 4.0, "f64": 0.1, "i32": -7.0,
        "content": 0.25,
    }  # fmt: skip


def test_what_a_restart_declares_void_is_left_out(tmp_path: Path) -> None:
    more = {"optim/updates": 1.0}
    first = events(tmp_path, *[(i, {"entropy/exact": i / 8} | more) for i in range(1, 6)])
    os.utime(first, (1, 1))
    events(tmp_path, (3, {"entropy/exact": 2.0} | more), purge_step=3)
    run = read_run(tmp_path)
    assert series(run) == [(1, 0.125), (2, 0.25), (3, 2.0)]
    assert run.notes == ()


def test_pictures_texts_and_histograms_are_passed_over(tmp_path: Path, monkeypatch) -> None:
    import numpy as np
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_histogram("h", np.arange(10.0), 1)
        writer.add_text("args", "x" * 5000, 1)
        writer.add_scalar("entropy/exact", 0.5, 1)
        writer.add_scalar("optim/updates", 1, 1)
    monkeypatch.setattr(tensorboard, "LARGEST", 1000)
    run = read_run(tmp_path)
    assert run.metrics == [{"iteration": 1, "entropy/exact": 0.5, "optim/updates": 1.0}]
    assert run.problems == ()


@pytest.mark.parametrize(
    ("data", "crc"),
    [(bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E),
     (b"123456789", 0xE3069283)],
)  # fmt: skip
def test_checksums_are_those_of_rfc_3720(data: bytes, crc: int) -> None:
    turned = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    assert tensorboard.masked(data) == (turned + 0xA282EAD8) % 2**32


def test_a_file_that_is_cut_anywhere_gives_what_came_before(tmp_path: Path) -> None:
    whole = events(tmp_path, *OURS).read_bytes()
    path, seen = tmp_path / "cut", set()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if (run := attempt(path)) is None:
            continue
        found = series(run)
        assert found == [(1, 0.75), (2, 0.5)][: len(found)]
        seen.add((len(found), bool(run.problems)))
        assert all("cut within record" in problem.reason for problem in run.problems)
    assert {(1, True), (1, False), (2, True)} <= seen


def test_a_damaged_record_costs_itself_alone(tmp_path: Path) -> None:
    path = events(tmp_path, *OURS)
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<f", 0.75))
    data[at] ^= 1
    path.write_bytes(data)
    run = read_run(path)
    assert series(run) == [(2, 0.5)]
    assert [p.reason for p in run.problems] == ["record 2 is damaged, and left out"]
    data = bytearray(events(tmp_path / "b", *OURS).read_bytes())
    second = 12 + struct.unpack_from("<Q", data)[0] + 4
    third = second + 12 + struct.unpack_from("<Q", data, second)[0] + 4
    data[third + 1] ^= 1  # a length
    path.write_bytes(data)
    run = read_run(path)
    assert series(run) == [(1, 0.75)]
    assert "record 3 has a damaged length; the rest is not read" in run.problems[0].reason


def record(data: bytes, length: int | None = None) -> bytes:
    """A record with right checksums, whatever it says."""
    head = struct.pack("<Q", len(data) if length is None else length)
    check = tensorboard.masked
    return head + struct.pack("<I", check(head)) + data + struct.pack("<I", check(data))


def test_hostile_records(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    def event(step: int, scalars: dict[str, float]) -> bytes:
        values = [Summary.Value(tag=k, simple_value=v) for k, v in scalars.items()]
        return record(Event(step=step, summary=Summary(value=values)).SerializeToString())

    ours = {"entropy/exact": 0.5, "optim/updates": 1.0}
    names = {
        "\x1b[2J\u202e<img src=x onerror=1>": 1.0, "": 2.0, "x" * 5000: 3.0, "iteration": 9.0,
        "step": 8.0, "kl/<img src=x onerror=1>": 4.0,
    }  # fmt: skip
    path = tmp_path / "events"
    path.write_bytes(
        record(Event(file_version="brain.Event:2").SerializeToString())
        + event(1, ours | names)
        + event(-5, ours)
        + event(2**62, ours)
        + event(2, {"entropy/exact": float("nan"), "optim/updates": float("inf")})
        + record(b"\xff" * 40)  # no message
        + record(b"\x2a\x7f\x0a")  # a summary that says to be longer than it is
        + record(b"\x0b\x0b\x0b")  # groups, which nobody writes
        + event(3, ours)
        + record(b"", 2**63)  # announces more than there is
    )
    run = read_run(path)
    assert [row["iteration"] for row in run.metrics] == [1, 3]
    assert len(json.dumps(run.metrics)) < 2000  # long names are cut
    reasons = [problem.reason for problem in run.problems]
    assert sum("is not a whole number from 0" in reason for reason in reasons) == 2
    assert sum("not a whole message" in reason for reason in reasons) == 3
    assert any("has no finite number" in reason for reason in reasons)
    assert any("cut within record 10" in reason for reason in reasons)
    assert main(["report", str(path), "--output", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "<img src=x" not in page
    assert "\x1b" not in page


def test_messages_are_read_as_protocol_buffers_say() -> None:
    # the three examples of protobuf.dev/programming-guides/encoding, and the largest varint
    assert list(fields(bytes.fromhex("089601"))) == [(1, 0, 150)]
    assert list(fields(bytes.fromhex("120774657374696e67"))) == [(2, 2, b"testing")]
    assert list(fields(bytes.fromhex("1a03089601"))) == [(3, 2, bytes.fromhex("089601"))]
    assert list(fields(bytes.fromhex("08ffffffffffffffffff01"))) == [(1, 0, 2**64 - 1)]
    for bad in ("08", "0896", "1207", "0d000000", "0bff", "08" + "ff" * 11):
        with pytest.raises(UnreadableError):
            list(fields(bytes.fromhex(bad)))


def test_several_runs_in_a_directory(tmp_path: Path, capsys) -> None:
    events(tmp_path / "logs/a", *OURS)
    events(tmp_path / "logs/b", *OURS, (3, OURS[0][1]))
    run = read_run(tmp_path / "logs")
    assert run.done == 3
    assert run.notes == ("Read b; other runs beside it are not, name their directories: a.",)
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "logs"), "--output", str(page)]) == 0
    assert "runs: a, b" in capsys.readouterr().out


def test_a_format_that_is_asked_for(tmp_path: Path) -> None:
    path = events(tmp_path, *OURS)
    assert read_run(path, "tensorboard").metrics == read_run(tmp_path, "tensorboard").metrics
    for other in ("trl", "wandb", "table"):
        with pytest.raises(ValueError, match="holds nothing that can be read"):
            read_run(path, other)


# --- W&B ---

WRITE = """
import json, os, sys, time
import wandb
for name, run in json.load(open(sys.argv[1])).items():
    one = wandb.init(
        project="p", id=run["id"], dir=os.path.join(sys.argv[2], name), mode="offline",
        config=run["config"], settings=wandb.Settings(silent=True, console="off"),
    )
    for row in run["rows"]:
        step = row.pop("_step", None)
        one.log(row, step=step)
    one.finish()
"""


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that W&B itself wrote: NAME/wandb/offline-run-.../run-ID.wandb."""
    folder = tmp_path_factory.mktemp("wandb")
    verl = [{"_step": step, **scalars} for step, scalars in VERL]
    ours = [{"_step": step, **scalars} for step, scalars in OURS]
    mode = {"actor_rollout_ref": {"actor": {"loss_agg_mode": "seq-mean-token-sum"}}}
    runs = {
        # transformers gives no step, but figures of that name
        "trl": {
            "id": "t1", "config": {"max_steps": 6, "logging_steps": 1},
            "rows": [{**rewritten(e), "train/global_step": e["step"]} for e in trl_log()]
            + [{"profiling/Time taken: x": 0.5}],
        },
        "verl": {"id": "v1", "config": {}, "rows": verl},
        "verl_sum": {"id": "v2", "config": mode, "rows": verl},
        "again": {"id": "o1", "config": {"iterations": 4}, "rows": ours},
        "again/": {
            "id": "o1", "config": {"iterations": 4},
            "rows": [{"_step": 3, **OURS[0][1], "nested": {"a": 2}, "text": "x" * 100_000}],
        },
        "other": {"id": "x1", "config": {}, "rows": [{"_step": i, **row} for i, row in OTHER]},
    }  # fmt: skip
    (folder / "runs.json").write_text(json.dumps(runs))
    for name in runs:
        (folder / name).mkdir(exist_ok=True)
    command = [sys.executable, "-c", WRITE, str(folder / "runs.json"), str(folder)]
    subprocess.run(command, check=True, env={**os.environ, "WANDB_SILENT": "true"})
    return folder


def log_of(folder: Path) -> Path:
    (path, *_) = sorted(folder.rglob("*.wandb"))
    return path


@pytest.mark.long
def test_trl_in_wandb_is_what_its_state_says(offline: Path) -> None:
    run, expected = read_run(offline / "trl"), read_run(STATE)
    assert (run.source, run.problems, run.planned) == ("TRL through W&B", (), expected.planned)
    assert run.entropy_is == expected.entropy_is
    keys = ("iteration", "entropy/exact", "reward/mean", "rollout/length_mean", "eval_entropy")
    assert [{k: row.get(k) for k in keys} for row in run.metrics] == [
        {k: row.get(k) for k in keys} for row in expected.metrics
    ]


def test_verl_in_wandb_with_its_settings(offline: Path) -> None:
    run = read_run(log_of(offline / "verl"))
    assert run.source == "veRL through W&B"
    assert series(run) == [(1, 0.5), (2, 0.375)]
    summed = read_run(offline / "verl_sum")
    assert series(summed, "entropy/logged") == [(1, 0.5), (2, 0.375)]
    assert "seq-mean-token-sum), not an entropy per token" in summed.entropy_is


def test_a_run_that_went_on_in_a_second_directory_is_one(offline: Path) -> None:
    run = read_run(offline / "again")
    assert run.source == "entrostat through W&B"
    assert series(run) == [(1, 0.75), (2, 0.5), (3, 0.75)]
    # a text of 100,000 characters spans blocks; what is no number is left out
    assert run.metrics[2] == {"iteration": 3, **OURS[0][1], "nested.a": 2.0}
    assert run.notes[0] == "Unfinished: 3 of 4 iterations are logged."


def test_anyones_in_wandb_and_several_runs(offline: Path) -> None:
    run = read_run(offline / "other")
    assert (run.source, series(run, "reward/mean")) == ("W&B", [(1, 0.5), (2, 0.75)])
    run = read_run(offline / "other", columns={"entropy": "charts/entropy"})
    assert series(run, "entropy/logged") == [(1, 2.0), (2, 1.0)]
    assert any("t1" in note or "x1" in note for note in read_run(offline).notes)


def test_wandb_cut_anywhere(offline: Path, tmp_path: Path) -> None:
    whole = log_of(offline / "verl").read_bytes()
    path = tmp_path / "run-v1.wandb"
    steps = set()
    for size in [*range(0, len(whole), 3), len(whole)]:
        path.write_bytes(whole[:size])
        if (run := attempt(path)) is None:
            continue
        found = series(run)
        assert found == [(1, 0.5), (2, 0.375)][: len(found)]
        steps.add((len(found), bool(run.problems)))
    assert {(1, True), (2, True), (2, False)} <= steps


def chunk(data: bytes, kind: int = 1) -> bytes:
    check = zlib.crc32(data, zlib.crc32(bytes([kind])))
    return struct.pack("<IHB", check, len(data), kind) + data


def field(number: int, data: bytes) -> bytes:
    assert len(data) < 16384
    length = (
        bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
    )
    key = number << 3 | 2
    return (bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])) + length + data


def history(step: int, **values: str) -> bytes:
    """A `Record` of a row by hand: item = 1 {nested_key = 2, value_json = 16}, step = 2."""
    items = [field(1, field(2, k.encode()) + field(16, v.encode())) for k, v in values.items()]
    return field(2, b"".join(items) + field(2, bytes([8, step])))


def test_a_damaged_block_costs_its_rest(tmp_path: Path) -> None:
    """Blocks are 32 KiB: the reader goes on where the next begins."""
    ours = {"entropy/exact": "0.5", "optim/updates": "1"}
    first = wandb.HEAD + chunk(history(1, **ours))
    damaged = bytearray(chunk(history(2, **ours)))
    damaged[-1] ^= 1
    first += bytes(damaged) + chunk(history(3, **ours))
    block = first + bytes(32768 - len(first))
    path = tmp_path / "run-x.wandb"
    path.write_bytes(block + chunk(history(4, **ours)))
    run = read_run(path)
    assert [row["iteration"] for row in run.metrics] == [1, 4]
    assert [p.reason for p in run.problems] == ["a damaged block, of which the rest is left out"]
    # room at the end that was never written to is no damage
    path.write_bytes(wandb.HEAD + chunk(history(1, **ours)) + bytes(100))
    assert read_run(path).problems == ()


def test_wandb_values_in_their_newer_fields_and_hostile_ones(tmp_path: Path) -> None:
    """W&B 0.31's HistoryItem has integer (sint64, 5) and number (double, 6) as well."""
    integer = field(1, field(2, b"optim/updates") + bytes([5 << 3, 9]))  # zigzag: 9 is -5
    real = field(1, field(1, b"entropy/exact") + bytes([6 << 3 | 1]) + struct.pack("<d", 0.125))
    odd = {
        "deep": "[" * 10_000, "huge": "1e999", "nan": "NaN", "under_score": "1_0", "text": '"0.5"',
        "\x1b[2J": "1",
    }  # fmt: skip
    items = [field(1, field(2, k.encode()) + field(16, v.encode())) for k, v in odd.items()]
    row = field(2, integer + real + b"".join(items) + field(2, bytes([8, 7])))
    path = tmp_path / "run-x.wandb"
    path.write_bytes(wandb.HEAD + chunk(row) + chunk(b"\xff\xff") + chunk(history(8, x="1"), 4))
    run = read_run(path)
    (metrics,) = run.metrics
    assert metrics == {
        "iteration": 7,
        "optim/updates": -5.0,
        "entropy/exact": 0.125,
        "\x1b[2J": 1.0,
    }
    assert [p.reason for p in run.problems] == ["record 2: not a whole message"]
    assert "Values that were not finite are left out: 2." in run.notes


def test_history_and_summary_in_json(tmp_path: Path) -> None:
    files = tmp_path / "run-20200101_000000-abc/files"
    files.mkdir(parents=True)
    own = {"_runtime": 5.0, "_timestamp": 1.5e9}
    rows = [{"_step": step, **own, **scalars} for step, scalars in VERL]
    (files / "wandb-history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (files / "wandb-summary.json").write_text(json.dumps(rows[-1]))
    (files / "wandb-metadata.json").write_text('{"os": "Linux"}')
    run = read_run(tmp_path)
    assert (run.source, series(run)) == ("veRL through W&B", [(1, 0.5), (2, 0.375)])
    assert "_runtime" not in run.metrics[0]
    (files / "wandb-history.jsonl").unlink()
    refused(lambda: read_run(tmp_path), "summary.json")


# --- whatever a file holds ---


def test_thousands_of_broken_files(offline: Path, tmp_path: Path) -> None:
    rng = random.Random(20261123)
    logs = [log_of(offline / "verl").read_bytes(), events(tmp_path / "tb", *VERL).read_bytes()]
    logs.append(
        wandb.HEAD + b"".join(chunk(history(i, **{"actor/entropy": "0.5"})) for i in range(1, 9))
    )
    path, read, refused = tmp_path / "broken", 0, 0
    for number in range(900):
        data = bytearray(rng.choice(logs))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(7, len(data))
            if rng.random() < 0.7:
                data[at] = rng.randrange(256)
            elif rng.random() < 0.5:
                del data[at : at + rng.randint(1, 40)]
            else:
                data[at:at] = rng.randbytes(rng.randint(1, 40))
        if number % 3 == 0:  # with right checksums, so that messages are broken
            body = bytearray(history(1, **{"actor/entropy": "0.5"}))
            body[rng.randrange(len(body))] = rng.randrange(256)
            data = bytearray(logs[2]) + chunk(bytes(body))
        path.write_bytes(data)
        if (run := attempt(path)) is None:
            refused += 1
            continue
        read += 1
        json.dumps(run.metrics, allow_nan=False, ensure_ascii=False).encode()
    assert read > 300
    assert refused > 20
