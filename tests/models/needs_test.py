"""What a run needs, what it is fastest with, and checkpoints by time: by hand and by fakes."""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import weakref
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from builders import config_with, refused
from entrostat.config import Save, TrainConfig, from_dict, load
from entrostat.errors import RunStopped
from entrostat.logs.files import in_bytes
from entrostat.logs.lines import JsonLines
from entrostat.models import hardware as machine
from entrostat.models import hardware as needs
from entrostat.models.hardware import MemoryEstimate, _cached, estimate_memory, free_memory
from entrostat.models.loading import load_policy
from entrostat.models.policy import Policy
from entrostat.models.pretrain import tokenizer
from entrostat.models.rollout import Sequences
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


def test_weights_optimizer_and_checkpoint_by_hand(llamas: dict[int, str]) -> None:
    n = parameters(15)
    assert n == 1920 + 2 * 36_992 + 64 == 75_968
    found = estimate_memory(
        load_policy(config(model=llamas[15])), config(), 10, 20, reference=False
    )
    assert found.weights == 4 * n  # float32
    assert found.optimizer == 3 * 4 * n  # gradients and two moments
    assert found.checkpoint == 3 * 4 * n  # weights and two moments
    # two checkpoints kept and one being written, the final model, 4 dumps of 24 x 20 tokens
    assert found.disk == 3 * 12 * n + 4 * n + 4 * 24 * 20 * 40
    assert found.analysis == 0
    assert found.device == torch.device("cpu")
    with_reference = estimate_memory(load_policy(config(model=llamas[15])), config(), 10, 20, True)
    assert with_reference.weights == 8 * n


def test_settings_that_change_what_is_needed(llamas: dict[int, str]) -> None:
    n, policy = parameters(15), load_policy(config(model=llamas[15]))

    def disk(**save: int) -> int:
        return estimate_memory(policy, config(save=save), 10, 20, False).disk

    dumps = 24 * 20 * 40
    assert disk(checkpoints=5, rollouts_every=0) == 6 * 12 * n + 4 * n
    # none kept at the end, but one there while another is written
    assert disk(checkpoints=0, rollouts_every=3) == 2 * 12 * n + 4 * n + dumps
    analysed = estimate_memory(policy, config(analyze={"every": 2}), 10, 20, False)
    assert analysed.analysis == 3 * 4 * n
    plain = dataclasses.replace(analysed, analysis=0)
    assert analysed.memory - plain.memory <= 3 * 4 * n


def test_adapters_need_moments_of_their_own_only(llamas: dict[int, str]) -> None:
    setting = config(model=llamas[15], lora={"rank": 4})
    policy = load_policy(setting)
    # rank 4 on q, k, v, o, gate, up, down: 4 (inputs + outputs) each, two layers
    pairs = [(64, 64), (64, 32), (64, 32), (64, 64), (64, 128), (64, 128), (128, 64)]
    adapters = 2 * sum(4 * (a + b) for a, b in pairs)
    found = estimate_memory(policy, setting, 10, 20, reference=True)
    assert found.optimizer == found.checkpoint == 3 * 4 * adapters
    assert found.weights == 4 * (parameters(15) + adapters)  # the reference is what is under them


def test_the_cache_and_the_logits_of_sampling_by_hand(llamas: dict[int, str]) -> None:
    policy = load_policy(config(model=llamas[5000]))
    place = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, size, float32
    assert _cached(policy) == place
    found = estimate_memory(policy, config(), 10, 20, reference=False)
    # 24 rollouts at once; three float32 rows of logits each
    assert found.sampling == 24 * (30 * place + 3 * 5000 * 4)
    some = config(sampling={"batch": 11})  # two whole groups of 4
    assert estimate_memory(policy, some, 10, 20, False).sampling == 8 * (30 * place + 3 * 5000 * 4)


def test_evaluations_sample_as_well(llamas: dict[int, str]) -> None:
    """24 rollouts to train on, but 128 samples to evaluate by."""
    policy = load_policy(config(model=llamas[5000]))
    found = estimate_memory(policy, config(eval={"prompts": 8, "samples": 16}), 10, 20, False)
    assert found.sampling >= 128 * (30 * 512 + 3 * 5000 * 4)
    few = config(eval={"prompts": 8, "samples": 16}, sampling={"batch": 40})  # two whole groups
    assert estimate_memory(policy, few, 10, 20, False).sampling == 32 * (30 * 512 + 3 * 5000 * 4)


def test_memory_is_that_of_the_larger_half_of_a_run(llamas: dict[int, str]) -> None:
    found = estimate_memory(
        load_policy(config(model=llamas[15])), config(), 10, 20, reference=False
    )
    base = dataclasses.replace(found, training=0, sampling=0, analysis=0).memory
    assert base >= found.weights + found.optimizer
    for training, sampling, analysis, more in ((5, 3, 0, 5), (3, 5, 0, 5), (3, 5, 4, 7)):
        now = dataclasses.replace(found, training=training, sampling=sampling, analysis=analysis)
        assert now.memory == base + more


def test_the_checkpoint_that_is_written_is_what_was_said(
    llamas: dict[int, str], tmp_path: Path
) -> None:
    setting = config(tmp_path / "run", model=llamas[15], iterations=2)
    said = estimate_memory(load_policy(setting), setting, 6, 13, reference=False)
    path = train(setting, task=Long())
    files = sorted((path / "checkpoints").glob("*.safetensors"))
    assert len(files) == 2
    for file in files:
        assert file.stat().st_size == pytest.approx(said.checkpoint, rel=0.02)
    written = sum(p.stat().st_size for p in path.rglob("*.safetensors"))
    assert 0.5 * said.disk < written <= said.disk


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


def kept_by_autograd(policy: Policy, sequences: Sequences) -> int:
    """Bytes of storages, other than weights, that a pass keeps for its backward pass."""
    weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        stats = policy.token_stats(sequences, 1.0)
    assert stats.logp.requires_grad
    return sum(size for place, size in kept.items() if place not in weights)


@pytest.mark.parametrize(
    ("V", "packs", "rows", "prompt", "new", "K", "micro"),
    [
        (15, True, False, 10, 20, 4, 16),
        (15, False, False, 10, 20, 4, 16),
        (15, True, True, 10, 20, 4, 16),
        (15, False, False, 40, 60, 8, 32),
        (5000, False, False, 10, 20, 4, 16),
        (15, True, False, 60, 60, 8, 32),
        (15, True, True, 60, 60, 8, 32),
        (5000, True, False, 10, 20, 4, 64),
    ],
)  # fmt: skip
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_a_micro_batch_keeps(
    llamas: dict[int, str], V: int, packs: bool, rows: bool, prompt: int, new: int, K: int,
    micro: int, precision: str,
) -> None:  # fmt: skip
    """Within a factor of 1.5 of a real one whose completions take all their tokens."""
    setting = config(
        model=llamas[V], precision=precision, sampling={"prompts": 16, "rollouts": K},
        optim={"minibatches": 1, "micro_batch": micro},
    )  # fmt: skip
    policy = load_policy(setting)
    policy.packs, policy.rows = packs, rows
    found = estimate_memory(policy, setting, prompt, new, reference=False).training
    tokens = torch.randint(2, V, (micro, prompt + new), generator=torch.Generator().manual_seed(0))
    sequences = Sequences(
        tokens, torch.ones_like(tokens), prompt, torch.ones(micro, new, dtype=torch.bool),
        torch.zeros(micro, new), torch.zeros(micro, dtype=torch.bool), torch.arange(micro) // K,
    )  # fmt: skip
    real = kept_by_autograd(policy, sequences)
    # few logits are kept whole, many in tiles, so what few show is too much for many
    assert real / 1.5 < found < real * (1.5 if V == 15 else 4)


def test_the_trial_of_a_pass_is_freed() -> None:
    """A node that saves its own output, as softmax does, is freed."""
    nodes: list[weakref.ref[Any]] = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            nodes.append(weakref.ref(ctx))
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * ctx.saved_tensors[0]

    layer = torch.nn.Linear(3, 5)
    policy: Any = SimpleNamespace(
        model=layer, token_stats=lambda sequences, temperature: Keeps.apply(layer(torch.ones(7, 3)))
    )
    assert needs._saved(policy, SimpleNamespace()) == 4 * (7 * 3 + 7 * 5)
    gc.collect()
    assert [node() for node in nodes] == [None]


# ---------------------------------------------------------------------------------------- refusals


Disk = namedtuple("Disk", ("total", "used", "free"))


@pytest.fixture
def found(llamas: dict[int, str]) -> MemoryEstimate:
    """What a run of the small model needs, in round numbers."""
    real = estimate_memory(load_policy(config(model=llamas[15])), config(), 10, 20, reference=False)
    return dataclasses.replace(
        real, weights=1000, optimizer=3000, training=500, sampling=400, analysis=0, disk=7000
    )


def told(
    found: MemoryEstimate,
    monkeypatch: pytest.MonkeyPatch,
    output: Path,
    disk: int,
    memory: int | None,
) -> list[str]:
    """What `check` says where so much is free."""
    said: list[str] = []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Disk(10**15, 0, disk))
    monkeypatch.setattr(needs, "free_memory", lambda device: memory)
    found.check(output, said.append)
    return said


def test_a_disk_that_is_too_small(
    found: MemoryEstimate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused(lambda: told(found, monkeypatch, tmp_path / "a" / "b", 6999, 10**9), "7000", "6999")
    memory, disk = told(found, monkeypatch, tmp_path / "a" / "b", 7000, 10**9)
    assert disk == "disk: 7 kB at most; 7 kB free"
    for words in ("weights 1 kB", "gradients and AdamW 3 kB", "a micro-batch 500 bytes",
                  "sampling 400 bytes"):  # fmt: skip
        assert words in memory
    assert not list(tmp_path.iterdir())


def test_what_the_run_has_written_before_counts_as_free(
    found: MemoryEstimate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("checkpoints/000001.safetensors", "final/model.safetensors", "rollouts/1.x"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"x" * 1000)
    (tmp_path / "metrics.jsonl").write_bytes(b"x" * 5000)  # is not replaced
    told(found, monkeypatch, tmp_path, 4000, None)
    refused(lambda: told(found, monkeypatch, tmp_path, 3999, None), "7000", "6999")


def test_a_memory_that_does_not_hold_the_moments(
    found: MemoryEstimate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    match = "gradients and AdamW's moments alone take 3000 bytes, 2999 are free.*--lora.rank 16"
    with pytest.raises(ValueError, match=match):
        told(found, monkeypatch, tmp_path, 10**9, 2999)


def test_a_memory_that_may_not_suffice(
    found: MemoryEstimate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Weights are there already; moments and a micro-batch, 3500 bytes, are to come."""
    *_, warning = told(found, monkeypatch, tmp_path, 10**9, 3499)
    assert warning.startswith("warning: memory may not suffice: 3500 bytes more may be needed")
    assert "3499 are free" in warning
    for enough in (3500, None):
        said = told(found, monkeypatch, tmp_path, 10**9, enough)
        assert len(said) == 2
        assert ("free" in said[0]) is (enough is not None)


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
        "memory", "disk", "warning", "checkpoints of 1.8 MB"
    ]  # fmt: skip


def test_free_memory_by_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:    50 kB\n"}

    def read(path: Path, encoding: str | None = None) -> str:
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
