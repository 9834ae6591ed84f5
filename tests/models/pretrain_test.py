"""The shipped policy: what the recipe says it is, and a maker that repeats itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import refused
from entrostat.config import TrainConfig
from entrostat.models.loading import load_policy
from entrostat.models.pretrain import PretrainConfig, pretrain


@pytest.mark.long
def test_pretraining_is_reproducible_and_learns(tmp_path: Path) -> None:
    losses: list[float] = []
    for name in ("a", "b"):
        losses.clear()
        config = PretrainConfig(output=str(tmp_path / name), steps=30, batch=32)
        pretrain(config, lambda step, loss: losses.append(loss))
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert a == b
    assert losses[0] > 2.5  # ln 15 = 2.71: knows nothing
    assert losses[-1] < 2.0
    refused(lambda: pretrain(PretrainConfig(output=str(tmp_path / "a"), steps=1)), "is not empty")


def test_pretraining_that_ends_early_leaves_nothing_and_touches_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis.txt").write_text("mine")
    (tmp_path / ".a.part").symlink_to(victim)
    (tmp_path / "a").mkdir()  # an empty place is taken as it is
    config = PretrainConfig(output=str(tmp_path / "a"), steps=1, batch=2)

    def stop(step: int, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(config, stop)
    names = [".a.part", "a", "victim"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert not list((tmp_path / "a").iterdir())
    assert pretrain(config) == tmp_path / "a"
    assert (tmp_path / "a/model.safetensors").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert (victim / "thesis.txt").read_text() == "mine"


def test_the_shipped_policy() -> None:
    policy = load_policy(TrainConfig())
    assert sum(p.numel() for p in policy.trained().values()) == 149_248
    ids = policy.encode("23/4:", chat=False, system="")
    assert policy.tokenizer.convert_ids_to_tokens(ids) == ["2", "3", "/", "4", ":"]
    assert policy.tokenizer.decode(ids) == "23/4:"
    assert len(policy.tokenizer) == 15


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [("steps", 0, "steps must be"), ("hidden", 30, "multiple of 16"), ("wrong", 2.0, "wrong must")],
)
def test_bad_settings(field: str, value: float, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        pretrain(PretrainConfig(**{field: value}))  # type: ignore[arg-type]
