"""A GRPOConfig as people write it -> its objective -> the trainer with that config.

Each kind trains two steps beside TRL's own trainer: losses, gradient norms and weights agree to
rounding. One group has no signal and micro-batches differ in their tokens, so that denominators
matter.
"""

import functools
import logging
import warnings
from collections import Counter

import pytest
import torch

import entrostat as es
from builders import refused
from entrostat.trainers.trl import from_grpo_config
from long_cases import keep

trl = pytest.importorskip("trl", reason="trl is an extra")
from entrostat.trainers.trl import EntropyGRPOTrainer  # noqa: E402
from entrostat.trainers.trl.iteration import GROUP, cut_anew  # noqa: E402
from trl_runs import MARKS, PROMPTS, K, make, model_of, tiny, weights  # noqa: E402

pytestmark = MARKS


def some_reward(prompts, completion_ids, **_):
    """By tokens; the rollouts of one prompt are all alike."""
    every = [float(len(set(ids))) / 4 for ids in completion_ids]
    return [0.5 if p == PROMPTS[0] else r for p, r in zip(prompts, every, strict=True)]


def third_reward(prompts, completion_ids, **_):
    """Said of one rollout of the first group, and of all others."""
    places = [i for i, p in enumerate(prompts) if p == PROMPTS[0]]
    known = [float(len(set(ids))) for ids in completion_ids]
    return [None if i in places[1:] else r for i, r in enumerate(known)]


def second_reward(completion_ids, **_):
    """Not said of every rollout."""
    return [None if len(ids) % 3 == 0 else float(sum(ids) % 5) for ids in completion_ids]


SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
CONFIGS = {
    "default": {},
    "clip higher": {"epsilon": 0.01, "epsilon_high": 0.02},
    "grpo, batch scale": {"loss_type": "grpo", "scale_rewards": "batch"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "gspo": {"loss_type": "grpo", **SEQUENCE},
    "luspo": {"loss_type": "luspo", **SEQUENCE},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.01},
    "sapo": {"loss_type": "sapo"},
    "vespo": {"loss_type": "vespo"},
    "two-sided": {"epsilon": 0.005, "delta": 1.01},
    "two-sided below the clip": {"delta": 1.005},
    "two-sided at 1": {"delta": 1.0},
    "two-sided gspo": {"loss_type": "grpo", **SEQUENCE, "delta": 1.0003},
    "vespo, level without a say": {"loss_type": "vespo", "importance_sampling_level": "sequence"},
    "reference KL": {"beta": 0.1},
    "reference KL, biased": {"beta": 0.1, "use_bias_correction_kl": False},
    "reference KL over gspo": {"beta": 0.1, "loss_type": "grpo", **SEQUENCE},
    "entropy bonus": {"entropy_coef": 0.05},
    "adaptive entropy": {
        "use_adaptive_entropy": True, "entropy_coef": 0.05, "entropy_target": 5.0,
        "num_iterations": 1,
    },
    "80/20, in each micro-batch": {"top_entropy_quantile": 0.2},
    "off-policy mask": {"off_policy_mask_threshold": 1e-5},
    "gdpo": {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0, 0.3]},
    "two rewards": {"reward_weights": [1.0, 0.3]},
    "several steps": {"gradient_accumulation_steps": 2, "steps_per_generation": 4,
                      "num_iterations": 1},
    "a rollout without others": {"scale_rewards": "batch", "reward": third_reward},
    # of TRL's own docs (Lite PPO), smaller: a step spans generation batches
    "lite ppo": {"scale_rewards": "batch", "steps_per_generation": 1, "num_iterations": 1},
    "a step over two unequal parts": {"steps_per_generation": 3, "gradient_accumulation_steps": 2,
                                      "loss_type": "grpo", "entropy_coef": 0.05, "beta": 0.1,
                                      "num_iterations": 1, "max_steps": 3},
    "truncated masked": {"mask_truncated_completions": True, "loss_type": "grpo",
                         "max_completion_length": 24},
}  # fmt: skip

KINDS = (  # one of each, by default
    "default", "dr_grpo", "gspo", "cispo", "two-sided gspo", "reference KL over gspo",
    "adaptive entropy", "80/20, in each micro-batch", "two rewards",
    "a step over two unequal parts",
)  # fmt: skip


def trained(cls, folder, name, **more):
    """The trainer after two steps of plain gradient descent, and its log."""
    settings = dict(CONFIGS[name])
    reward = settings.pop("reward", some_reward)
    if "reward_weights" in settings:
        reward = [some_reward, second_reward]
    kept = {
        "optim": "sgd", "learning_rate": 0.5, "max_steps": 2, "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
    }  # fmt: skip
    model = tiny() if "beta" in settings else model_of(0.05, seed=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lm_head.*")
        trainer = make(
            cls, folder, reward=reward, model=model, prompts=PROMPTS * 4, **kept | settings | more
        )
    start = [w.clone() for w in weights(trainer)]
    trainer.train()
    ends = torch.cat([(a - b).flatten() for a, b in zip(weights(trainer), start, strict=True)])
    log = [line for line in trainer.state.log_history if "grad_norm" in line]
    return trainer, ends, log


def ours(*args, more=None, **kwargs):
    own = from_grpo_config(kwargs["args"])
    own["method"] += [] if more is None else [more]
    return EntropyGRPOTrainer(*args, objective=es.make_objective(**own), **kwargs)


@pytest.mark.parametrize("name", keep(CONFIGS, *KINDS))
def test_a_config_through_its_objective_trains_as_trl_does(tmp_path, name):
    _, theirs, log = trained(trl.GRPOTrainer, tmp_path, name)
    trainer, mine, own = trained(ours, tmp_path, name)
    assert theirs.norm() > 1e-3
    assert (mine - theirs).norm() < 1e-4 * theirs.norm()
    for one, other in zip(own, log, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5, abs=2e-6)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
    # TRL's own figures are of the same configuration
    assert trainer.loss_type == CONFIGS[name].get("loss_type", "dapo")


# ---------------------------------------------------------------------------- entropy=


ONE = {"max_steps": 1, "optim": "adamw_torch"}


OVER = ["default", "cispo", "dr_grpo", "80/20, in each micro-batch"]


@pytest.mark.parametrize("name", keep(OVER, "default", "80/20, in each micro-batch"))
def test_entropy_is_a_thermostat_over_the_configs_loss(tmp_path, name):
    """One step: the loss is TRL's, and the bonus begins at 0."""
    _, _, log = trained(trl.GRPOTrainer, tmp_path, name, **ONE)
    trainer, _, own = trained(held, tmp_path, name, **ONE)
    assert trainer.objective.names[-1] == "thermostat"
    assert own[0]["loss"] == pytest.approx(log[0]["loss"], rel=1e-5, abs=2e-6)
    (line,) = own
    assert line["control/target"] == pytest.approx(0.8 * line["entropy/exact"])


def held(*args, **kwargs):
    return EntropyGRPOTrainer(*args, entropy="0.8x", **kwargs)


@pytest.mark.parametrize("epochs", [1, 2])
def test_in_one_epoch_the_steps_of_a_thermostat_have_whole_prompts(tmp_path, epochs):
    """Two steps of two micro-batches: two of the four prompts each, with all their rollouts."""
    trainer = make(
        held, tmp_path, num_iterations=epochs, gradient_accumulation_steps=2, optim="adamw_torch",
        steps_per_generation=4, max_steps=4,
    )  # fmt: skip
    seen, compute = [], trainer._compute_loss

    def watched(model, inputs):
        seen.append([tuple(ids) for ids in inputs["prompt_ids"].tolist()])
        return compute(model, inputs)

    trainer._compute_loss = watched
    trainer.train()
    steps = [Counter(a + b) for a, b in zip(seen[::2], seen[1::2], strict=True)]
    assert len(steps) == 4
    whole = [[*step.values()] == [K, K] for step in steps]
    assert all(whole) if epochs == 1 else not any(whole)  # TRL's seeded shuffle
    assert [*(steps[0] + steps[1]).values()] == [K] * 4


def test_images_stay_with_their_rollouts_when_minibatches_are_cut_anew():
    """Images as Qwen's: a row of pixels a patch, and rollouts with one image, none or two."""
    torch.manual_seed(0)
    pieces = []
    for group, images in (([0, 1, 1], [1, 0, 2]), ([0, 0, 1], [2, 1, 1])):
        rollout = torch.arange(3) + 3 * len(pieces)
        grids = [[1, 1, 1 + (r + k) % 2] for r, n in enumerate(images) for k in range(n)]
        patches = [(r + k) % 2 + 1 for r, n in enumerate(images) for k in range(n)]
        owners = [r for r, n in enumerate(images) for _ in range(n)]
        pixels = [float(rollout[r]) for r, n in zip(owners, patches, strict=True) for _ in range(n)]
        pieces.append({
            "prompt_ids": rollout[:, None], GROUP: torch.tensor(group), "num_images": images,
            "image_grid_thw": torch.tensor(grids), "pixel_values": torch.tensor(pixels)[:, None],
        })  # fmt: skip
    own = {0: 1, 1: 0, 2: 3, 3: 3, 4: 2, 5: 1}  # patches of each rollout, counted by hand
    cut = cut_anew(pieces, whole_groups=True)
    assert sorted(tuple(set(piece[GROUP].tolist())) for piece in cut) == [(0,), (1,)]
    for piece in cut:
        rows = piece["prompt_ids"][:, 0].tolist()
        assert piece["pixel_values"][:, 0].tolist() == [r for r in rows for _ in range(own[r])]
        assert len(piece["image_grid_thw"]) == sum(piece["num_images"])


def test_controllers_see_a_steps_first_generation_batch(tmp_path):
    """Of four: zeta is doubled once a step, entropy being below its target."""
    build = functools.partial(ours, more={"name": "repo_r", "target": 9.0})
    _, _, log = trained(build, tmp_path, "lite ppo", dump=tmp_path / "log")
    assert [line["control/zeta"] for line in log] == pytest.approx([2e-3, 4e-3])
    assert es.load_rollouts(tmp_path / "log", 1).prompts == [PROMPTS[0]] * K


def test_adaptive_entropy_beside_entropy_is_refused(tmp_path):
    settings = {"use_adaptive_entropy": True, "entropy_coef": 0.01}
    refused(lambda: make(held, tmp_path, **settings), "'0.8x'", "set use_adaptive_entropy=False")


def test_another_optimizer_is_named_and_so_is_what_to_do(tmp_path):
    refused(lambda: trained(held, tmp_path, "default"), "got SGD", "'knob': 'entropy_coef'")


def test_entropy_beside_an_objective_is_refused(tmp_path):
    refused(
        lambda: trained(lambda *a, **k: held(*a, objective="grpo", **k), tmp_path, "default"),
        "'0.8x'",
        "beside an objective list it there",
    )


# ---------------------------------------------------------------------------- what changes


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_type": "dr_grpo"}, r"loss_type='dr_grpo' becomes aggregation='token_mean'"),
        ({"epsilon_high": 0.28}, r"epsilon_high=0.28 becomes ppo\(low=0.2, high=0.2, dual=None\)"),
        ({"scale_rewards": "none"}, "scale_rewards='none' becomes advantage='grpo'"),
        ({"scale_rewards": False}, "scale_rewards='none' becomes advantage='grpo'"),
        ({"entropy_coef": 0.01}, "entropy_coef=0.01 is not used"),
        ({"beta": 0.04}, "beta=0.04 is not used"),
        ({"beta": 0.04, "sync_ref_model": True}, "beta=0.04 is not used"),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, "epsilon_high=5.0 becomes ppo"),
    ],
)
def test_one_warning_names_what_an_objective_changes(tmp_path, settings, words):
    from entrostat.trainers.trl import settings as ours

    args = trl.GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **settings)
    with pytest.warns(UserWarning, match=words) as found:
        settled = ours.settle(args, es.make_objective("grpo_token", advantage="grpo"), "'x'")
    assert len(found) == 1
    assert "objective='x' changes what this GRPOConfig trains" in str(found[0].message)
    # the figures that TRL logs are of what trains, the user's own object is left alone
    assert (settled.loss_type, settled.epsilon_high) == ("dapo", 0.2)
    assert (settled.scale_rewards, settled.entropy_coef, settled.beta) == ("group", 0.0, 0.0)
    assert not settled.sync_ref_model  # which TRL refuses without a reference
    assert all(getattr(args, k) == (v or "none") for k, v in settings.items())


def test_what_changes_from_trls_defaults_is_logged(tmp_path, caplog):
    from entrostat.trainers.trl import settings as ours

    args = trl.GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    with caplog.at_level(logging.WARNING):
        ours.settle(args, es.make_objective("dapo"))
    (record,) = caplog.records
    for words in ("scale_rewards='group' becomes advantage='rloo'", "epsilon=0.2 becomes ppo",
                  "loss_type='dapo' becomes aggregation='seq_mean_token_mean'"):  # fmt: skip
        assert words in record.getMessage()


@pytest.mark.parametrize("name", [*CONFIGS])
def test_an_appended_method_changes_nothing(tmp_path, name, caplog):
    from entrostat.trainers.trl import settings as ours

    settings = {"gradient_accumulation_steps": 4} | CONFIGS[name]
    settings.pop("reward", None)
    args = trl.GRPOConfig(
        str(tmp_path), use_cpu=True, bf16=False, report_to="none", num_generations=K, **settings
    )
    own = from_grpo_config(args)
    own["method"].append({"name": "repo_r", "zeta": 0.01})
    settled = ours.settle(args, es.make_objective(**own))
    own = {} if args.beta else {"use_bias_correction_kl": False}  # there is none
    assert vars(settled) == vars(args) | own
    assert not caplog.records


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"delta": 0.9}, "delta=0.9 is below 1"),
        ({"scale_rewards": "std"}, "scale_rewards 'std'"),
        ({"loss_type": "sapo", "importance_sampling_level": "sequence"}, "takes a token's ratio"),
        ({"top_entropy_quantile": 0.2, "entropy_coef": 0.1}, "keeps the entropy bonus to its"),
    ],
)
def test_a_config_without_an_equal(tmp_path, settings, words):
    args = trl.GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **settings)
    with pytest.raises(ValueError, match=words):
        from_grpo_config(args)
