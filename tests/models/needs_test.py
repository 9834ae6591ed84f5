"""What a run needs, what it is fastest with, and checkpoints by time: by hand and by fakes."""

from __future__ import annotations

import os
import re
import shutil
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from builders import config_with, refused
from entrostat.config import Save, TrainConfig, from_dict, load
from entrostat.errors import RunStopped
from entrostat.logs.files import in_bytes
from entrostat.logs.lines import JsonLines
from entrostat.models import hardware as machine
from entrostat.models import hardware as needs
from entrostat.models.hardware import free_memory
from entrostat.models.loading import device_of, load_policy
from entrostat.models.pretrain import tokenizer
from entrostat.runs import checkpoint as checkpoints
from entrostat.runs.progress import Progress
from entrostat.study.plan import check_same
from entrostat.trainers import assemble
from entrostat.trainers.lab import state, train
from stopping import Stop

# 2 layers, hidden 64, 4 heads on 2 key-value heads of 16, intermediate 128
LLAMA = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "eos_token_id": 1,
    "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


def parameters(V: int) -> int:
    """Of LLAMA: embedding and head, of each layer q and o, k and v, the MLP's three, two norms."""
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    return 2 * V * 64 + 2 * layer + 64


@pytest.fixture(scope="module")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Directories by vocabulary."""
    import transformers

    found = {}
    for V in (15, 5000):
        path = tmp_path_factory.mktemp("models") / str(V)
        torch.manual_seed(0)
        config = transformers.LlamaConfig(**LLAMA, vocab_size=V)
        transformers.LlamaForCausalLM(config).save_pretrained(path)
        tokenizer().save_pretrained(path)
        found[V] = str(path)
    return found


def config(output: Path | str = "", **changes: Any) -> TrainConfig:
    data: dict = {
        "method": "grpo", "iterations": 4, "output": str(output), "eval": {"prompts": 0},
        "sampling": {"prompts": 6, "rollouts": 4},
    }  # fmt: skip
    return config_with(data, **changes)


# ------------------------------------------------------------------------------------- what by hand


def test_bytes_as_people_read_them() -> None:
    assert in_bytes(0) == "0 bytes"
    assert in_bytes(999) == "999 bytes"
    assert in_bytes(1000) == "1 kB"
    assert in_bytes(1500) == "1.5 kB"
    assert in_bytes(64_000_000) == "64 MB"
    assert in_bytes(99_400_000) == "99 MB"
    assert in_bytes(100_000_000) == "100 MB"
    assert in_bytes(540_000_000) == "540 MB"
    assert in_bytes(1_600_000_000) == "1.6 GB"
    assert in_bytes(25_400_000_000) == "25 GB"
    assert in_bytes(3_000_000_000_000) == "3000 GB"


def test_bytes_just_below_a_hundred() -> None:
    assert in_bytes(99_600_000) == "100 MB"


Disk = namedtuple("Disk", ("total", "used", "free"))


def told(
    setting: TrainConfig, free: int = 10**9, memory: int | None = 10**9, new: int = 20,
    output: Path | None = None, **copies: bool,
) -> list[str]:  # fmt: skip
    """What is said of a run where so much of disk and memory is free."""
    said: list[str] = []
    both = {"reference": False, "second": False} | copies
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: Disk(10**15, 0, free))
        patch.setattr(needs, "free_memory", lambda device: memory)
        policy = load_policy(setting)
        needs.check_room(policy, setting, new, output or Path("run"), said.append, **both)
    return said


def bytes_of(setting: TrainConfig, **more: Any) -> tuple[int, int]:
    """Of gradients and moments, and of the disk, as the refusals say them."""
    found = []
    for low in ({"memory": 0}, {"free": 0}):
        with pytest.raises(ValueError, match=r"take \d+ bytes|write \d+ bytes") as error:
            told(setting, **more, **low)
        found.append(int(re.findall(r"(\d+) bytes", str(error.value))[0]))
    return found[0], found[1]


def test_weights_optimizer_and_disk_by_hand(llamas: dict[int, str]) -> None:
    n, setting = parameters(15), config(model=llamas[15])
    assert n == 1920 + 2 * 36_992 + 64 == 75_968
    # gradients and two moments; two checkpoints of weights and moments and one being written, the
    # final model, 4 dumps of 24 x 20 tokens
    assert bytes_of(setting) == (12 * n, 3 * 12 * n + 4 * n + 4 * 24 * 20 * 40)
    memory, disk = told(setting, 2_000_000_000, 10**9)
    own = f"memory: weights {in_bytes(4 * n)}, gradients and AdamW {in_bytes(12 * n)}; "
    assert memory.startswith(own)
    assert memory.endswith("; 1 GB free")
    assert disk.endswith("at most; 2 GB free")
    with_reference = told(setting, reference=True)[0]
    assert f"weights {in_bytes(8 * n)}," in with_reference
    second = told(setting, reference=True, second=True)[0]
    assert f"weights {in_bytes(12 * n)}, gradients and AdamW {in_bytes(24 * n)};" in second
    assert "free" not in told(setting, memory=None)[0]


def test_settings_that_change_what_is_needed(llamas: dict[int, str]) -> None:
    n = parameters(15)

    def disk(**save: Any) -> int:
        return bytes_of(config(model=llamas[15], save=save))[1]

    dumps = 24 * 20 * 40
    assert disk(checkpoints=5, rollouts_every=0) == 6 * 12 * n + 4 * n
    # none kept at the end, but one there while another is written
    assert disk(checkpoints=0, rollouts_every=3) == 2 * 12 * n + 4 * n + dumps


def test_adapters_need_moments_of_their_own_only(llamas: dict[int, str]) -> None:
    setting = config(model=llamas[15], lora={"rank": 4})
    # rank 4 on q, k, v, o, gate, up, down: 4 (inputs + outputs) each, two layers
    pairs = [(64, 64), (64, 32), (64, 32), (64, 64), (64, 128), (64, 128), (128, 64)]
    adapters = 2 * sum(4 * (a + b) for a, b in pairs)
    assert bytes_of(setting, reference=True)[0] == 3 * 4 * adapters
    weights = 4 * (parameters(15) + adapters)  # the reference is what is under them
    assert f"weights {in_bytes(weights)}," in told(setting, reference=True)[0]


def test_the_checkpoint_that_is_written_is_what_was_said(
    llamas: dict[int, str], tmp_path: Path
) -> None:
    setting = config(tmp_path / "run", model=llamas[15], iterations=2)
    size = checkpoints.size_of(load_policy(setting).trained())
    assert size == 3 * 4 * parameters(15)
    _, disk = bytes_of(setting, new=13)
    path = train(setting, task=Long())
    files = sorted((path / "checkpoints").glob("*.safetensors"))
    assert len(files) == 2
    for file in files:
        assert file.stat().st_size == pytest.approx(size, rel=0.02)
    written = sum(p.stat().st_size for p in path.rglob("*.safetensors"))
    assert 0.5 * disk < written <= disk


class Long:
    """Prompts of 6 tokens, completions of 13, any of which may be right."""

    name, splits = "long", ("train",)

    def max_new_tokens(self, split: str) -> int:
        return 13

    def size(self, split: str) -> None:
        return None

    def example(self, index: int, split: str) -> Any:
        from entrostat.tasks import Example

        return Example(f"12345{index % 10}")

    def score(self, completion: str, example: Any) -> float:
        return float(len(completion) % 2)


def test_what_the_run_has_written_before_counts_as_free(
    llamas: dict[int, str], tmp_path: Path
) -> None:
    setting = config(model=llamas[15])
    for name in ("checkpoints/000001.safetensors", "final/model.safetensors", "rollouts/1.x"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"x" * 1000)
    (tmp_path / "metrics.jsonl").write_bytes(b"x" * 5000)  # is not replaced
    _, disk = bytes_of(setting)
    told(setting, disk - 3000, output=tmp_path)
    refused(
        lambda: told(setting, disk - 3001, output=tmp_path / "."), f"{disk} bytes", f"{disk - 1}"
    )


def test_what_does_not_fit_is_refused_in_bytes(llamas: dict[int, str], tmp_path: Path) -> None:
    setting, n = config(model=llamas[15]), parameters(15)
    moments, disk = bytes_of(setting)
    place = tmp_path / "a" / "b"
    told(setting, disk, moments, output=place)
    refused(lambda: told(setting, disk - 1, output=place), f"{disk} bytes", f"{disk - 1} are free")
    match = f"AdamW's moments alone take {12 * n} bytes, {12 * n - 1} are free.*--lora.rank 16"
    with pytest.raises(ValueError, match=match):
        told(setting, disk, moments - 1, output=place)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["disk", "memory"])
def test_a_run_that_cannot_be_held_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Disk(10**15, 0, 1000))
        match = r"the run may write \d+ bytes, 1000 are free"
    else:
        monkeypatch.setattr(needs, "free_memory", lambda device: 1000)
        # the tiny policy's 149,248 parameters
        match = f"moments alone take {12 * 149_248} bytes, 1000 are free"
    with pytest.raises(ValueError, match=match):
        train(config(tmp_path / "runs" / "run"))
    assert not list(tmp_path.iterdir())


def test_what_is_said_is_kept_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    class Listening(Progress):
        def __init__(self) -> None:
            self.facts: list[str] = []

        def fact(self, text: str) -> None:
            self.facts.append(text)

    progress = Listening()
    monkeypatch.setattr(needs, "free_memory", lambda device: 12 * 149_248)
    path = train(config(tmp_path / "run", iterations=1), progress=progress)
    assert json.loads((path / "environment.json").read_text())["said"] == progress.facts
    assert [text.split(":")[0] for text in progress.facts] == [
        "memory", "disk", "checkpoints of 1.8 MB"
    ]  # fmt: skip


def test_free_memory_by_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:    50 kB\n"}

    def read(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    cpu = torch.device("cpu")
    monkeypatch.setattr(Path, "read_text", read)
    assert free_memory(cpu) == 50 * 1024
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert free_memory(cpu) == 50 * 1024
    files["/sys/fs/cgroup/memory.max"] = "30000\n"  # a container's, of which 10000 are taken
    files["/sys/fs/cgroup/memory.current"] = "10000\n"
    assert free_memory(cpu) == 20_000
    files["/sys/fs/cgroup/memory.max"] = "90000\n"
    assert free_memory(cpu) == 50 * 1024
    files.clear()
    assert free_memory(cpu) is None


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="Linux")
def test_free_memory_of_this_machine() -> None:
    free = free_memory(torch.device("cpu"))
    assert free is not None
    assert 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# -------------------------------------------------------------------------- what it is fastest with


def products(monkeypatch: pytest.MonkeyPatch, single: float, half: float) -> list[torch.dtype]:
    """Fake timings; the list fills with what was timed."""
    asked: list[torch.dtype] = []

    def seconds(dtype: torch.dtype) -> float:
        asked.append(dtype)
        return {torch.float32: single, torch.bfloat16: half}[dtype]

    monkeypatch.setattr(machine, "product_seconds", seconds)
    return asked


@pytest.mark.parametrize(
    ("single", "half", "chosen"),
    [
        (1.0, 0.25, "bf16"),
        (1.0, 0.79, "bf16"),  # 1.27 times as fast
        (1.0, 0.81, "fp32"),  # 1.23 times: not worth the accuracy
        (1.0, 1.0, "fp32"),
        (1.0, 8.0, "fp32"),  # emulated
    ],
)
@pytest.mark.parametrize("amx", [True, False])
def test_precision_by_measurement(
    monkeypatch: pytest.MonkeyPatch, single: float, half: float, chosen: str, amx: bool
) -> None:
    asked = products(monkeypatch, single, half)
    monkeypatch.setattr(machine, "has_amx", lambda: amx)
    said: list[str] = []
    setting = config(precision="auto", device="cpu")
    machine.choose_precision(setting, said.append)
    assert setting.precision == chosen
    assert sorted(asked, key=str) == [torch.bfloat16, torch.float32]
    amx_words = "has AMX" if amx else "has no AMX"
    assert said == [
        f"precision: {chosen}; the processor {amx_words}, a product in bf16 takes {half:.2f} of "
        "float32's time (measured)"
    ]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_precision_that_is_asked_for_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    asked = products(monkeypatch, 1.0, 0.1)
    said: list[str] = []
    setting = config(precision=precision)
    machine.choose_precision(setting, said.append)
    assert (setting.precision, asked, said) == (precision, [], [])


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_a_gpu_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for place, name in enumerate(("cuda", "cuda:1")):
        if place < gpus:
            assert device_of(name) == torch.device(name)
        else:
            refused(lambda name=name: device_of(name), f"device {name!r}", f"GPUs here: {gpus}")


@pytest.mark.parametrize(("good", "chosen"), [(True, "bf16"), (False, "fp32")])
def test_precision_on_a_gpu_is_what_it_has(
    monkeypatch: pytest.MonkeyPatch, good: bool, chosen: str
) -> None:
    asked = products(monkeypatch, 1.0, 0.1)
    monkeypatch.setattr(machine, "device_of", lambda name: torch.device("cuda"))
    emulation = []

    def supported(including_emulation: bool = True) -> bool:
        emulation.append(including_emulation)
        return good

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    setting = config(precision="auto")
    machine.choose_precision(setting, lambda text: None)
    assert (setting.precision, asked, emulation) == (chosen, [], [False])


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What torch is told, in order; it is not."""
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    return told


POLICY: Any = SimpleNamespace(device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("there", "seconds", "fastest"),
    [
        (4, {1: 0.4, 2: 0.2, 4: 0.3}, 2),
        (4, {1: 0.1, 2: 0.2, 4: 0.3}, 1),
        (6, {1: 0.9, 2: 0.8, 4: 0.7, 6: 0.5}, 6),
        (1, {1: 0.9}, 1),
        (2, {1: 0.5, 2: 0.5}, 1),  # no faster with more
    ],
)
def test_threads_by_measurement(
    monkeypatch: pytest.MonkeyPatch, threads: list[int], there: int, seconds: dict, fastest: int
) -> None:
    tried = []

    def short_pass(policy: Any, n: int) -> float:
        tried.append(n)
        return seconds[n]

    monkeypatch.setattr(machine, "_THREADS", there)
    monkeypatch.setattr(machine, "_pass_seconds", short_pass)
    said: list[str] = []
    setting = config()
    machine.choose_threads(setting, POLICY, False, said.append)
    assert tried == sorted(seconds)
    assert setting.threads == threads[-1] == fastest
    assert said[0].startswith(f"threads: {fastest}; ")
    assert f"{fastest}: {1000 * seconds[fastest]:.0f} ms" in said[0]


def test_threads_that_need_no_measurement(
    monkeypatch: pytest.MonkeyPatch, threads: list[int]
) -> None:
    def never(policy: Any, n: int) -> float:
        raise AssertionError("measured")

    monkeypatch.setattr(machine, "_pass_seconds", never)
    said: list[str] = []
    for setting, small in ((config(threads=3), False), (config(threads=3), True)):
        machine.choose_threads(setting, POLICY, small, said.append)
        assert setting.threads == 3
    setting = config()
    machine.choose_threads(setting, POLICY, True, said.append)
    assert threads == [3, 3, 1]
    assert setting.threads == 0  # a small model's one is no choice to write down
    gpu: Any = SimpleNamespace(device=torch.device("cuda"))
    machine.choose_threads(setting, gpu, False, said.append)
    assert (threads, setting.threads, said) == ([3, 3, 1], 0, [])


def test_a_study_gives_all_its_runs_the_same_threads(
    monkeypatch: pytest.MonkeyPatch, threads: list[int]
) -> None:
    monkeypatch.setattr(machine, "_pass_seconds", lambda policy, n: pytest.fail("measured"))
    monkeypatch.setattr(machine, "_THREADS", 2)
    monkeypatch.setenv("ENTROSTAT_STUDY", "1")
    setting = config()
    machine.choose_threads(setting, POLICY, False, print)
    assert (threads, setting.threads) == ([2], 2)
    setting = config()
    machine.choose_threads(setting, POLICY, True, print)  # the tiny policy is faster with one
    assert (threads, setting.threads) == ([2, 1], 0)


def test_what_is_measured_is_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real timings: some seconds for some work, however many threads."""
    assert 0 < machine.product_seconds(torch.float32) < 10
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    assert 0 < machine._pass_seconds(load_policy(config()), 1) < 10


class Watching(Progress):
    """Notes where a run began, and may end it after an iteration."""

    def __init__(self, last: int | None = None) -> None:
        self.last, self.start = last, -1

    def begin(self, config: TrainConfig, start: int) -> None:
        self.start = start

    def iteration(self, iteration: int, metrics: dict) -> None:
        if iteration == self.last:
            raise Stop


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """The tiny policy counts as large; the seconds of its passes by threads."""
    seconds = {1: 0.2, 2: 0.1}
    for module in (assemble, state):
        monkeypatch.setattr(module, "is_small", lambda model: False)
    monkeypatch.setattr(machine, "_THREADS", 2)
    monkeypatch.setattr(machine, "_pass_seconds", lambda policy, n: seconds[n])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    return seconds


@pytest.mark.long
@pytest.mark.usefixtures("unrendered")
def test_a_resume_keeps_what_was_measured(
    large: dict[int, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By `--resume`, which reads the run's own config.toml."""
    from entrostat.cli import main

    products(monkeypatch, 1.0, 0.5)
    path = train(config(tmp_path / "run", precision="auto", iterations=1))
    written = load(path / "config.toml")
    assert (written["precision"], written["threads"]) == ("bf16", 2)
    asked = products(monkeypatch, 1.0, 2.0)  # now the other way round
    large[1] = 0.01
    assert main(["train", "--resume", str(path), "--iterations", "2"]) == 0
    again = load(path / "config.toml")
    assert (again["precision"], again["threads"]) == ("bf16", 2)
    assert again["iterations"] == 2
    assert asked == []


def test_a_resume_by_the_same_configuration_keeps_what_was_measured(
    large: dict[int, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setting = config(tmp_path / "run", precision="auto")
    products(monkeypatch, 1.0, 0.5)
    with pytest.raises(Stop):
        train(setting, progress=Watching(1))
    products(monkeypatch, 1.0, 2.0)
    with pytest.raises(Stop):
        train(setting, progress=Watching(2), resume=True)
    assert load(tmp_path / "run/config.toml")["precision"] == "bf16"


def test_a_study_knows_a_run_by_what_it_asked_for(
    large: dict[int, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Precision, threads, learning rate and chat are resolved in the run's own file."""
    products(monkeypatch, 1.0, 0.5)
    asked = {"precision": "auto", "iterations": 1, "sampling": {"stop": ["+"]}}
    path = train(config(tmp_path / "run", **asked))
    written = load(path / "config.toml")
    assert (written["precision"], written["threads"]) == ("bf16", 2)
    assert written["optim"]["lr"] == 1e-6  # of a large model

    def same(**changes: Any) -> Any:
        setting = config(**asked | changes)
        refusal = pytest.raises(ValueError, match="holds a run with other settings")
        return lambda good: _in(nullcontext() if good else refusal, path, setting)

    same()(True)
    same(precision="bf16", threads=2, optim={"lr": 1e-6})(True)
    same(precision="fp32")(False)
    same(precision="fp16")(False)
    same(threads=1)(False)
    same(optim={"lr": 3e-4})(False)
    same(prompt={"chat": True})(False)
    same(sampling={"stop": []})(False)
    same(sampling={"stop": ["+"], "top_p": 0.5})(False)
    same(save={"checkpoint_minutes": 5.0})(False)


def _in(context: Any, path: Path, setting: TrainConfig) -> None:
    with context:
        check_same(path, setting)


def test_choices_are_forgotten_where_they_were_left_open() -> None:
    there = config(precision="bf16", threads=2, optim={"lr": 1e-6}, prompt={"chat": False})
    there.forget_choices(config(precision="auto", threads=2))
    assert (there.precision, there.threads) == ("auto", 2)
    assert (there.optim.lr, there.prompt.chat) == (None, None)
    kept = config(precision="bf16", optim={"lr": 1e-6})
    kept.forget_choices(config(precision="fp32", optim={"lr": 1e-4}))
    assert (kept.precision, kept.optim.lr) == ("bf16", 1e-6)


def test_precision_auto_in_a_configuration(tmp_path: Path) -> None:
    setting = config(precision="auto")
    (tmp_path / "c.toml").write_text(setting.to_toml())
    assert from_dict(load(tmp_path / "c.toml")) == setting
    refused(lambda: config(precision="bf8"), "'bf8'")
    refused(lambda: config(save={"checkpoint_minutes": 0}), "save.checkpoint_minutes", "got 0")
    refused(lambda: config(save={"checkpoint_every": -1}), "save.checkpoint_every", "got -1")


# ------------------------------------------------------------------------------ checkpoints by time


class Clock(Watching):
    """Four minutes per iteration; notes when checkpoints are written."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, last: int | None = None, minutes: float = 4
    ) -> None:
        super().__init__(last)
        self.now, self.minutes, self.written = 1000.0, minutes, []
        monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: self.now))
        write = WRITE

        def noted(directory: Path, saved: checkpoints.Checkpoint, keep: int) -> None:
            write(directory, saved, keep)
            self.written.append(saved.iteration)

        monkeypatch.setattr(checkpoints, "write", noted)

    def trained(self, iteration: int, metrics: dict) -> None:
        self.now += 60 * self.minutes


WRITE = checkpoints.write


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No checkpoint is small enough to be written after every iteration."""
    monkeypatch.setattr(checkpoints, "CHEAP", 0)
    return monkeypatch


def by_time(output: Path, **save: Any) -> TrainConfig:
    return config(output, iterations=7, save={"checkpoint_minutes": 10.0, **save})


def there(run: Path) -> list[int]:
    return sorted(int(p.stem) for p in (run / "checkpoints").glob("*.safetensors"))


def rows(run: Path) -> list[dict]:
    lines = JsonLines(run / "metrics.jsonl").read()
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in lines]


def weights(run: Path) -> bytes:
    return (run / "final/model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never interrupted, a checkpoint each iteration."""
    return train(by_time(tmp_path_factory.mktemp("whole") / "run"))


@pytest.mark.long
def test_checkpoints_are_written_when_they_are_due_and_at_the_end(
    dear: pytest.MonkeyPatch, whole: Path, tmp_path: Path
) -> None:
    """Ten minutes have passed after 12, iteration 3; then after 24, iteration 6."""
    clock = Clock(dear)
    run = train(by_time(tmp_path / "run"), progress=clock)
    assert clock.written == [3, 6, 7]
    assert there(run) == [6, 7]
    newest = [row["time/checkpoint"] for row in JsonLines(run / "metrics.jsonl").read()]
    assert newest == [0, 0, 0, 3, 3, 3, 6]  # as the iteration was logged: before its own
    assert weights(run) == weights(whole)
    assert rows(run) == rows(whole)


@pytest.mark.parametrize(
    ("cheap", "save", "minutes", "written"),
    [
        (10**12, {}, 0, [1, 2, 3, 4, 5, 6, 7]),  # small: every iteration, whatever the time
        (0, {}, 0, [7]),  # seven iterations within ten minutes
        (0, {}, 11, [1, 2, 3, 4, 5, 6, 7]),  # each longer than ten minutes
        (0, {"checkpoint_minutes": 4.0}, 4, [1, 2, 3, 4, 5, 6, 7]),  # exactly as long
        (0, {"checkpoint_minutes": 4.5}, 4, [2, 4, 6, 7]),
        (0, {"checkpoint_every": 3}, 60, [3, 6, 7]),  # as told
        (10**12, {"checkpoint_every": 3}, 0, [3, 6, 7]),
    ],
)
def test_which_iterations_are_due(
    dear: pytest.MonkeyPatch, cheap: int, save: dict, minutes: float, written: list[int],
) -> None:  # fmt: skip
    """`Schedule` alone, asked as the loop asks."""
    dear.setattr(checkpoints, "CHEAP", cheap)
    clock = Clock(dear, minutes=minutes)
    schedule = checkpoints.Schedule(Save(**save), size=1, start=0)
    found = []
    for iteration in range(1, 8):
        clock.trained(iteration, {})
        if iteration == 7 or schedule.due(iteration):
            schedule.written(iteration)
            found.append(iteration)
        assert schedule.newest == (found[-1] if found else 0)
    assert found == written


def test_a_schedule_in_words(dear: pytest.MonkeyPatch) -> None:
    def words(size: int, **save: Any) -> str:
        return checkpoints.Schedule(Save(**save), size, 0).words()

    assert words(1_600_000_000) == (
        "checkpoints of 1.6 GB: every 10 minutes and at the end, the newest 2 kept"
    )
    assert "every 2.5 minutes and" in words(1, checkpoint_minutes=2.5)
    assert "every 5 iterations and at the end, none kept" in words(
        1, checkpoint_every=5, checkpoints=0
    )
    dear.setattr(checkpoints, "CHEAP", 100)
    assert "every iteration and" in words(99)
    assert "every 10 minutes and" in words(100)


@pytest.mark.long
def test_killed_before_the_first_checkpoint_a_run_starts_again(
    dear: pytest.MonkeyPatch, whole: Path, tmp_path: Path
) -> None:
    setting = by_time(tmp_path / "run")
    with pytest.raises(Stop):
        train(setting, progress=Clock(dear, last=2))
    assert len(rows(tmp_path / "run")) == 2
    assert there(tmp_path / "run") == []
    clock = Clock(dear)
    run = train(setting, progress=clock, resume=True)
    assert clock.start == 0
    assert clock.written == [3, 6, 7]
    assert weights(run) == weights(whole)
    assert rows(run) == rows(whole)


def test_killed_after_a_checkpoint_a_run_goes_on_from_it(
    dear: pytest.MonkeyPatch, whole: Path, tmp_path: Path
) -> None:
    setting = by_time(tmp_path / "run")
    with pytest.raises(Stop):
        train(setting, progress=Clock(dear, last=5))
    assert there(tmp_path / "run") == [3]
    clock = Clock(dear)
    run = train(setting, progress=clock, resume=True)
    assert clock.start == 3
    assert clock.written == [6, 7]  # 12 minutes after the resume
    assert weights(run) == weights(whole)
    assert rows(run) == rows(whole)


@pytest.mark.long
def test_none_are_kept_where_none_are_wanted(
    dear: pytest.MonkeyPatch, whole: Path, tmp_path: Path
) -> None:
    setting = by_time(tmp_path / "run", checkpoints=0)
    with pytest.raises(Stop):
        train(setting, progress=Clock(dear, last=6))
    assert there(tmp_path / "run") == [6]  # one, until the final model is there
    run = train(setting, progress=Clock(dear), resume=True)
    assert there(run) == []
    assert weights(run) == weights(whole)
    assert train(setting, progress=Clock(dear), resume=True) == run  # is done
    assert there(run) == []
    assert rows(run) == rows(whole)


@pytest.mark.parametrize("iterations", [1, 2])
def test_a_finished_run_without_checkpoints_is_not_started_again(
    dear: pytest.MonkeyPatch, tmp_path: Path, iterations: int
) -> None:
    """All its iterations were within ten minutes, so the only checkpoint was the one removed."""
    setting = by_time(tmp_path / "run", checkpoints=0)
    setting.iterations = iterations
    run = train(setting, progress=Clock(dear))
    before = (run / "metrics.jsonl").read_bytes()
    setting.iterations = 3
    refused(
        lambda: train(setting, progress=Clock(dear), resume=True),
        "no checkpoint to go on from",
        error=RunStopped,
    )
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_run_whose_checkpoints_were_deleted_is_refused(
    dear: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setting = by_time(tmp_path / "run")
    with pytest.raises(Stop):
        train(setting, progress=Clock(dear, last=4))
    assert there(tmp_path / "run") == [3]
    shutil.rmtree(tmp_path / "run/checkpoints")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    refused(
        lambda: train(setting, progress=Clock(dear), resume=True),
        "4 iterations but no checkpoint to go on from",
        error=RunStopped,
    )
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before
    assert len(list((tmp_path / "run/rollouts").glob("*.safetensors"))) == 4
