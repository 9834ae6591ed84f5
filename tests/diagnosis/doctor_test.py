"""The doctor: every fault planted in a run is found by its own check, and a clean run has none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import entrostat as es
from builders import config_with, refused
from entrostat.cli import main
from entrostat.config import TrainConfig
from entrostat.core.batch import Terms, TokenBatch
from entrostat.core.stats import TokenStats
from entrostat.data.generation import Answers
from entrostat.diagnosis.doctor import CHECKS, Finding, lines, preflight
from entrostat.diagnosis.doctor.cut import Threads
from entrostat.diagnosis.doctor.numbers import surprise
from entrostat.diagnosis.doctor.tokens import wilson_low
from entrostat.method import METHODS
from entrostat.models import policy, rollout
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers import assemble
from entrostat.trainers.lab import examine, experience
from entrostat.trainers.lab.rehearsal import rehearse

pytestmark = pytest.mark.usefixtures("unrendered")

ON_POLICY = {"epochs": 1, "minibatches": 1}


def config(method: Any = "grpo", **changes: Any) -> TrainConfig:
    return config_with({"method": method, "sampling": {"rollouts": 6}}, **changes)


def found(given: TrainConfig, prompts: int = 4, **how: Any) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(given, prompts=prompts, **how)}


def checked(name: str, given: TrainConfig, prompts: int = 4) -> Finding:
    """One check alone: those that need no update are quick."""
    (check,) = [one for one in CHECKS if one.name == name]
    with rehearse(given, prompts) as subject:
        return check.says(check.measured(subject))


def faults(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.wrong}


# ------------------------------------------------------------------ nothing is wrong


@pytest.mark.parametrize(
    "method",
    [
        "grpo",
        pytest.param("rloo", marks=pytest.mark.slow),
        ["grpo", {"name": "repo_r", "bidirectional": True, "target": 0.7, "zeta_max": 0.5}],
        {"name": "thermostat", "target": "0.75x"},
        {"name": "adaptive_entropy", "target": 0.9},
        ["clip_higher", "steer", "kl_cov"],
        pytest.param(["dapo", "entropy_bonus", "kl_ref"], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_clean_run_has_no_finding(method: Any) -> None:
    given = config([method] if isinstance(method, str | dict) else method)
    if method == "rloo":
        given.optim.epochs = given.optim.minibatches = 1
    findings = found(given)
    assert faults(findings) == set(), [f for f in findings.values() if f.wrong]
    assert [*findings] == [check.name for check in CHECKS]
    for finding in findings.values():
        assert finding.evidence
        assert not finding.fix
        assert finding.source
    assert not preflight(given)


# ------------------------------------------------------------------ by the settings alone


@pytest.mark.parametrize(
    ("fault", "given", "words"),
    [
        ("rounding", {"numerics": {"round_logp": "bf16"}}, "round_logp bf16"),
        ("ratio", {"optim": ON_POLICY}, r"the clip of ppo, [0.8, 1.2], acts on no token"),
        ("penalties", {"method": ["kl_cov"], "optim": ON_POLICY}, "`kl_cov` (its penalty is flat)"),
        ("authority", {"method": [{"name": "repo_r", "target": 0.0}]}, "a target of 0"),
        ("gate", {"method": [{"name": "adaptive_entropy", "target": 0.0}]}, "at most 0 nats"),
    ],
)
def test_faults_of_the_settings(fault: str, given: dict[str, Any], words: str) -> None:
    early = preflight(config(**{"method": "grpo", **given}))
    (finding,) = [one for one in early if one.name == fault]
    assert words in finding.evidence
    assert finding.fix
    assert len(early) == (2 if fault == "penalties" else 1)  # every ratio is 1 there, too


@pytest.mark.parametrize(("precision", "version", "told"), [("bf16", "2", 1), ("fp32", "2", 0),
                                                           ("bf16", "1", 0)])  # fmt: skip
def test_fsdp2s_output_cast_by_how_it_was_launched(
    precision: str, version: str, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accelerate 1.15 (utils/launch.py) hands these to the processes that it starts."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", version)
    early = preflight(config(host="trl", precision=precision))
    assert [one.name for one in early] == told * ["rounding"]
    assert not preflight(config())


def test_a_group_of_one() -> None:
    """`train` refuses it in an error of its own; the doctor says what is wrong, and no more."""
    given = config(sampling={"rollouts": 1})
    assert not preflight(given)
    findings = found(given)
    assert faults(findings) == {"group"}
    assert "sampling.rollouts is 1" in findings["group"].evidence
    assert {f.level for f in findings.values()} == {"wrong", "skipped"}


def test_what_trl_says_itself_is_not_said_twice() -> None:
    assert not preflight(config("kl_cov", host="trl", optim=ON_POLICY))
    assert not preflight(config("nothing of that name"))  # the run refuses it


def test_a_schedule_that_leaves_the_first_entropy_is_no_fault() -> None:
    given = config([{"name": "thermostat", "target": "linear 1x 0.6x"}])
    assert not preflight(given)
    assert not checked("authority", given).wrong


# ------------------------------------------------------------------ planted in the model


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], None]], None]:
    """Do something to the model once it is loaded."""

    def plant(change: Callable[[Any], None]) -> None:
        real = assemble.load_policy

        def changed(given: TrainConfig) -> policy.Policy:
            loaded = real(given)
            change(loaded.model)
            return loaded

        monkeypatch.setattr(assemble, "load_policy", changed)

    return plant


def cast(model: Any) -> None:
    """What FSDP2's output cast does to a model's output."""

    def hook(module: Any, inputs: Any, output: Any) -> Any:
        output.logits = output.logits.bfloat16().float()
        return output

    model.register_forward_hook(hook)


def cast_head(model: Any) -> None:
    model.get_output_embeddings().register_forward_hook(lambda m, i, z: z.bfloat16().float())


@pytest.mark.parametrize("change", [cast, cast_head])
def test_logits_rounded_on_their_way_out(load: Any, change: Any) -> None:
    load(change)
    finding = checked("rounding", config())
    assert finding.wrong
    assert "logits come out in bfloat16" in finding.evidence
    assert finding.source == "REPO App. A.1"


def test_half_precision_of_a_small_vocabulary_is_rounding() -> None:
    finding = checked("rounding", config(precision="bf16"))
    assert finding.wrong
    assert "(precision bf16)" in finding.evidence


def test_log_probs_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    real = policy.Policy.token_stats

    def halved(self: Any, *args: Any, **how: Any) -> TokenStats:
        stats = real(self, *args, **how)
        return replace(stats, logp=stats.logp.bfloat16().float())

    monkeypatch.setattr(policy.Policy, "token_stats", halved)
    finding = checked("rounding", config())
    assert finding.wrong
    assert "fit bfloat16 exactly" in finding.evidence


def test_entropy_that_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    def usual(
        logits: torch.Tensor, targets: torch.Tensor, temperature: float = 1.0, moments: bool = False
    ) -> TokenStats:
        z = logits / temperature
        logp = z.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        return TokenStats(logp, z.logsumexp(-1) - (z.softmax(-1) * z).sum(-1))

    monkeypatch.setattr(policy, "token_stats_from_logits", usual)
    finding = checked("cancellation", config())
    assert finding.wrong
    assert "off float64" in finding.evidence


def test_a_layer_that_mixes_sequences(load: Any) -> None:
    def mixing(model: Any) -> None:
        def hook(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            return output - output.mean((0, 1))  # of the whole micro-batch

        model.model.norm.register_forward_hook(hook)

    load(mixing)
    findings = found(config())
    assert findings["selection"].wrong
    assert "the gradient in micro-batches of" in findings["selection"].evidence
    assert findings["mismatch"].wrong  # one token at a time it is another model


# ------------------------------------------------------------------ planted in the sampler


def noisy(monkeypatch: pytest.MonkeyPatch, change: Callable[..., tuple[Any, Any]]) -> None:
    real = rollout.choose

    def choose(logits: Any, temperature: float, top_p: float, source: Any) -> tuple[Any, Any]:
        return change(real, logits, temperature, top_p, source)

    monkeypatch.setattr(rollout, "choose", choose)


def test_a_sampler_that_is_another_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """d ~ N(0, .2): KL is its mean of exp(d) - d - 1, about .2^2 / 2 = .02 nats."""
    g = torch.Generator().manual_seed(1)

    def change(real: Any, *args: Any) -> tuple[Any, Any]:
        token, logp = real(*args)
        return token, logp + 0.2 * torch.randn(logp.shape, generator=g)

    noisy(monkeypatch, change)
    findings = found(config())
    assert faults(findings) == {"mismatch"}
    kl = float(findings["mismatch"].evidence.split("trainer) ")[1].split(" ")[0])
    assert 0.013 < kl < 0.027


def test_a_sampler_that_says_log_probs_of_another_temperature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As vLLM does by default: tokens at .7, log-probs of the raw logits."""

    def change(real: Any, logits: Any, *args: Any) -> tuple[Any, Any]:
        token, _ = real(logits, *args)
        return token, logits.float().log_softmax(-1).gather(1, token[:, None])[:, 0]

    noisy(monkeypatch, change)
    finding = checked("temperature", config(sampling={"temperature": 0.7}))
    assert finding.wrong
    assert "the sampler's log-probs are those of temperature 1" in finding.evidence


def test_a_scorer_at_another_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    real = policy.Policy.token_stats

    def wrong(self: Any, sequences: Any, temperature: float, **how: Any) -> TokenStats:
        return real(self, sequences, 1.0, **how)

    monkeypatch.setattr(policy.Policy, "token_stats", wrong)
    finding = checked("temperature", config(sampling={"temperature": 0.7}))
    assert finding.wrong
    assert "the trainer's log-probs are those of temperature 1" in finding.evidence


def test_tokens_drawn_at_another_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampler and trainer agree on every log-prob; the tokens alone show it."""

    def change(real: Any, logits: Any, temperature: float, *args: Any) -> tuple[Any, Any]:
        token, _ = real(logits, 0.5 * temperature, *args)
        return token, logits.float().log_softmax(-1).gather(1, token[:, None])[:, 0]

    noisy(monkeypatch, change)
    assert not checked("mismatch", config()).wrong
    finding = checked("temperature", config(), 12)
    assert finding.wrong
    assert "tokens were not drawn at sampling.temperature 1 as if at 0." in finding.evidence


# ------------------------------------------------------------------ planted in the mask


def sequences_changed(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    real = experience.answer

    def answer(*args: Any, **how: Any) -> Answers:
        given = real(*args, **how)
        return replace(given, sequences=change(given.sequences))

    monkeypatch.setattr(experience, "answer", answer)


def test_padding_in_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences_changed(monkeypatch, lambda s: replace(s, mask=torch.ones_like(s.mask)))
    finding = checked("padding", config())
    assert finding.wrong
    assert "stand after their completion's end" in finding.evidence


def test_an_end_that_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_the_last(s: Any) -> Any:
        last = s.mask.sum(-1) - 1
        mask = s.mask & (torch.arange(s.mask.shape[1]) != last[:, None])
        return replace(s, mask=mask, sampler_logp=s.sampler_logp * mask)

    sequences_changed(monkeypatch, without_the_last)
    finding = checked("eos", config())
    assert finding.wrong
    assert "not at mask 1 in 24 of 24 rollouts" in finding.evidence


def test_completions_that_never_end() -> None:
    finding = checked("eos", config(sampling={"max_new_tokens": 2}))
    assert finding.wrong
    assert "none of 24 rollouts ended: all ran into their limit of 2 tokens" in finding.evidence


# ------------------------------------------------------------------ planted in the task


class Solved(TargetSum):
    def score(self, completion: str, example: Any) -> float:
        return 1.0


def test_groups_without_a_signal() -> None:
    findings = found(config(["ppo", "entropy_bonus"]), task=Solved())
    finding = findings["zero_advantage"]
    assert finding.wrong
    assert "4 of 4 groups have no signal; mean reward 1.00" in finding.evidence
    silent = found(config(), task=Solved())
    assert silent["ratio"].level == "skipped"
    assert faults(silent) == {"zero_advantage"}


def test_wilsons_interval() -> None:
    """By hand at share 1: n / (n + z^2)."""
    assert wilson_low(8, 8) == pytest.approx(8 / (8 + 1.959964**2), rel=1e-6)
    assert wilson_low(0, 0) == 0


# ------------------------------------------------------------------ planted in the method


@dataclass(frozen=True)
class LocalMean(es.Method):
    """Weighs by a mean of its own part."""

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Any) -> Terms:
        lp = torch.where(batch.mask, batch.logp, 0)
        below = lp < lp.sum() / batch.mask.sum()
        return terms.replace(weight=torch.where(below, 0.5, terms.weight))


@dataclass(frozen=True)
class PaddedMean(es.Method):
    """Weighs by a mean that counts padding."""

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Any) -> Terms:
        return terms.replace(weight=terms.weight * (1 + batch.logp.mean()))


@dataclass(frozen=True)
class Chance(es.Method):
    """Drops tokens by a random number of its own."""

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Any) -> Terms:
        return terms.replace(weight=(torch.rand(batch.mask.shape) < 0.5).to(terms.weight.dtype))


@dataclass(frozen=True)
class Nothing(es.Method):
    """Does nothing."""

    share: float = 0.0

    needs: ClassVar[tuple[str, ...]] = ("entropy",)


@pytest.fixture
def registered() -> Any:
    known = dict(METHODS)
    for cls in (LocalMean, PaddedMean, Chance, Nothing):
        es.register(cls.__name__.lower())(cls)
    yield
    METHODS.clear()
    METHODS.update(known)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("localmean", "selection"), ("paddedmean", "padding"), ("chance", "selection"),
        ("nothing", "penalties"),
        ({"name": "entropy_bonus", "coef": 0.0}, "penalties"),
        ({"name": "clip_cov", "low": 90.0, "high": 91.0}, "penalties"),
        pytest.param({"name": "kl_ref", "coef": 0.0}, "penalties", marks=pytest.mark.slow),
        ("adaptive_entropy", "gate"),
        ({"name": "repo_r", "target": 5.0}, "authority"),
        ({"name": "repo_r", "target": 0.1, "zeta_max": 1e-4, "zeta": 1e-4}, "authority"),
    ],
    ids=str,
)  # fmt: skip
def test_faults_of_a_method(method: Any, fault: str) -> None:
    findings = found(config(["ppo", method], iterations=20))
    assert fault in faults(findings), lines(list(findings.values()))
    name = method if isinstance(method, str) else method["name"]
    assert f"`{name}`" in findings[fault].evidence
    # its own alone, but that a draw of its own differs between any two calls
    assert faults(findings) == {fault} or name in ("paddedmean", "chance")


def test_updates_that_change_nothing() -> None:
    findings = found(config(optim={"lr": 1e-30}))
    assert faults(findings) == {"ratio"}
    assert "the ratio is exactly 1 at each of" in findings["ratio"].evidence


def test_a_knob_that_cannot_raise_what_falls() -> None:
    """zeta up to .1 against the bonus up to .5: docs/thermostat_record.md has whole runs."""
    weak = checked("authority", config([{"name": "repo_r", "target": "1.2x"}]), 12)
    strong = {"name": "thermostat", "target": "1.2x", "knob": "entropy_coef"}
    assert "cannot keep entropy from falling" in weak.evidence
    assert not checked("authority", config([strong]), 12).wrong


# ------------------------------------------------------------------ nothing is left behind


def test_weights_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    real = assemble.load_policy

    def keep(given: TrainConfig) -> policy.Policy:
        loaded.append(real(given))
        before.update({n: p.clone() for n, p in loaded[0].trained().items()})
        return loaded[0]

    before: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(assemble, "load_policy", keep)
    checked("authority", config([{"name": "thermostat", "target": "0.75x", "knob": "zeta"}]))
    assert all(torch.equal(p, before[name]) for name, p in loaded[0].trained().items())


def test_the_mean_of_lp_and_entropy() -> None:
    """Drawn from p = (.8, .2): lp + H has mean 0; at another p it has the KL's first term."""
    p = torch.tensor([0.8, 0.2], dtype=torch.float64)
    H = -(p * p.log()).sum()
    g = torch.Generator().manual_seed(0)
    own = torch.multinomial(p, 4000, replacement=True, generator=g)
    assert abs(surprise(p.log()[own], H.expand(4000))) < 3
    other = torch.multinomial(torch.tensor([0.9, 0.1]).double(), 4000, True, generator=g)
    # mean .1 log 4 = .139, standard deviation .3 log 4 = .416: 21 sigma
    assert surprise(p.log()[other], H.expand(4000)) == pytest.approx(
        0.1 * math.log(4) / (0.3 * math.log(4)) * math.sqrt(4000), rel=0.2
    )


def test_ranks_that_ask_for_different_things() -> None:
    import threading

    with pytest.raises(threading.BrokenBarrierError):
        Threads(2, 0.2).run(lambda ranks: ranks.gather(torch.ones(1, 1).numpy()) * ranks.rank
                            if ranks.rank else None)  # fmt: skip
    refused(lambda: Threads(2, 0.2).run(_fails), "of its own")


def _fails(ranks: Any) -> None:
    if ranks.rank:
        raise ValueError("of its own")
    ranks.gather(torch.ones(1, 1).numpy())


# ------------------------------------------------------------------ the command line


def test_the_verb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--sampling.rollouts", "6", "--log", "tensorboard"]  # as `train` takes them
    assert main(["doctor", "--prompts", "3", *words]) == 0
    out = capsys.readouterr().out
    assert "10 checks, nothing wrong; 3 do not apply." in out
    assert "WRONG" not in out
    file = tmp_path / "a.toml"
    file.write_text('method = "grpo"\n[optim]\nepochs = 1\nminibatches = 1\n')
    assert main(["doctor", "--config", str(file), "--prompts", "3", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    (bad,) = [one for one in data if one["level"] == "wrong"]
    assert bad["name"] == "ratio"
    assert set(bad) == {"name", "level", "evidence", "fix", "source"}
    assert len(data) == len(CHECKS) == 13


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--prompts", "0"], "--prompts must be a whole number from 1 to 9999, got '0'"),
        (["--promts", "3"], "unknown option"),
        (["--method", "grp"], "unknown method 'grp'. Did you mean 'grpo'?"),
        (["runs", "--prompts", "3"], "takes no --prompts"),
        (["nowhere"], "is neither a file nor a directory"),
        (["--rollouts", "nowhere"], "nowhere"),
    ],
)
def test_bad_input(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert told in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Examples:" in out
    for check in CHECKS:
        assert f"\n  {check.name} " in out
    assert main(["doctor"]) == 2


def test_train_says_what_the_settings_show(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--method", "kl_cov", "--optim.epochs", "1", "--optim.minibatches", "1",
             "--iterations", "1", "--sampling.prompts", "2", "--sampling.rollouts", "2",
             "--eval.prompts", "0", "--output", str(tmp_path / "run")]  # fmt: skip
    assert main(["train", *words]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "entrostat doctor" in line]
    assert len(told) == 2
    assert "`kl_cov` (its penalty is flat) does nothing" in told[1]
