"""Golden values of veRL: its own functions of `verl.trainer.ppo.core_algos` on fixed inputs.

    python3 -m venv .venv-verl
    .venv-verl/bin/pip install -r tests/golden/verl-requirements.txt
    .venv-verl/bin/pip install --no-deps verl==0.9.1
    .venv-verl/bin/python tests/golden/make_verl.py            # writes verl.json
    .venv-verl/bin/python tests/golden/make_verl.py --check    # compares with verl.json

(`make verl-env` does the first three; verl itself goes in without its dependencies, which want a
GPU server.) Nothing of veRL is replaced. A policy loss is called as its worker calls it,
`f(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config)`, with `config` its own
`ActorConfig`; the reference KL and the entropy bonus are put together from `kl_penalty` and
`agg_loss` in the two lines of its `ppo_loss`. Everything is float64 except where a case says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import main, make_inputs, plain, tensor, versions
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import (
    agg_loss,
    get_adv_estimator_fn,
    get_policy_loss_fn,
    kl_penalty,
)
from verl.workers.config import ActorConfig, PolicyLossConfig

INPUTS = make_inputs()
AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
# veRL's dual clip cannot be switched off; no ratio here comes near this bound
NO_DUAL = 1e6


def advantages_of(data: dict[str, Any], key: str) -> torch.Tensor:
    """[B, T]: a token's own, or a rollout's at each of its tokens."""
    A = tensor(data[key])
    return A if A.ndim == 2 else A[:, None].expand(tensor(data["logp"]).shape)


def policy_loss(
    name: str,
    function: str,
    aggregation: str = "token-mean",
    inputs: str = "ragged",
    scale_factor: int | None = None,
    seed: int | None = None,
    advantages: str = "advantages",
    **settings: Any,
) -> dict[str, Any]:
    """One case: loss and its gradient with respect to log_prob."""
    data = INPUTS[inputs]
    actor = {k: v for k, v in settings.items() if k.startswith(("clip_ratio", "tau_"))}
    mode = {k: v for k, v in settings.items() if k not in actor}
    info = {} if scale_factor is None else {"loss_scale_factor": scale_factor}
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode=function, **mode),
        **actor,
    )
    config.global_batch_info.update(info)
    log_prob = tensor(data["logp"]).requires_grad_()
    if seed is not None:
        torch.manual_seed(seed)
    loss, _ = get_policy_loss_fn(function)(
        tensor(data["old_logp"]),
        log_prob,
        advantages_of(data, advantages),
        torch.tensor(data["mask"]),
        aggregation,
        config,
    )
    loss.backward()
    given = {"name": name, "function": function, "aggregation": aggregation, "inputs": inputs}
    if scale_factor is not None:
        given["loss_scale_factor"] = scale_factor
    if seed is not None:
        given["seed"] = seed
    if advantages != "advantages":
        given["advantages"] = advantages
    return given | {"settings": settings, "loss": plain(loss), "grad": plain(log_prob.grad)}


def extra_term(name: str, function: str, aggregation: str, coef: float) -> dict[str, Any]:
    """The reference KL (`function` = its form) or the entropy bonus, without a policy loss."""
    data, mask = INPUTS["ragged"], torch.tensor(INPUTS["ragged"]["mask"])
    if function == "entropy":
        leaf = tensor(data["entropy"]).requires_grad_()
        loss = -coef * agg_loss(loss_mat=leaf, loss_mask=mask, loss_agg_mode=aggregation)
    else:
        leaf = tensor(data["logp"]).requires_grad_()
        kl = kl_penalty(leaf, tensor(data["ref_logp"]), function)
        loss = agg_loss(loss_mat=kl, loss_mask=mask, loss_agg_mode=aggregation) * coef
    loss.backward()
    given = {"name": name, "function": function, "aggregation": aggregation, "inputs": "ragged"}
    return given | {"settings": {"coef": coef}, "loss": plain(loss), "grad": plain(leaf.grad)}


def losses() -> list[dict[str, Any]]:
    cases = []
    for low, high, dual in (
        (0.2, 0.2, NO_DUAL),
        (0.2, 0.28, NO_DUAL),
        (0.28, 0.2, NO_DUAL),
        (0.12, 0.2, NO_DUAL),
        (0.1, 0.1, NO_DUAL),
        (0.99, 5.0, NO_DUAL),
        (0.2, 0.2, 3.0),
        (0.2, 0.28, 1.5),
    ):
        clip = {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": dual}
        name = f"vanilla {low} {high}" + ("" if dual == NO_DUAL else f" dual {dual}")
        full = (low, high) == (0.2, 0.28)
        for aggregation in AGGREGATIONS if full else AGGREGATIONS[:1]:
            cases.append(policy_loss(f"{name} {aggregation}", "vanilla", aggregation, **clip))
    clip = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": NO_DUAL}
    cases.append(
        policy_loss("vanilla constant length", "vanilla", AGGREGATIONS[2], scale_factor=16, **clip)
    )
    for aggregation in AGGREGATIONS:
        cases.append(
            policy_loss(f"vanilla empty {aggregation}", "vanilla", aggregation, "empty", **clip)
        )
        for low, high in ((3e-4, 4e-4), (0.2, 0.28)):
            cases.append(
                policy_loss(
                    f"gspo {low} {high} {aggregation}", "gspo", aggregation,
                    clip_ratio_low=low, clip_ratio_high=high,
                )
            )  # fmt: skip
        cases.append(policy_loss(f"gpg {aggregation}", "gpg", aggregation))
        for kind, low, high in (
            ("cispo", 0.3, 0.4), ("dppo_tv", 0.1, 0.15), ("dppo_kl", 0.02, 0.03),
        ):  # fmt: skip
            bounds = {"clip_ratio_low": low, "clip_ratio_high": high}
            if kind != "cispo":
                bounds["clip_ratio_c"] = 1.5  # of 3 that ActorConfig has, where its code means 20
            cases.append(policy_loss(f"{kind} {aggregation}", kind, aggregation, **bounds))
        cases.append(extra_term(f"entropy {aggregation}", "entropy", aggregation, 0.01))
        for form in ("k1", "k2", "k3"):
            cases.append(extra_term(f"kl {form} {aggregation}", form, aggregation, 0.05))

        # every candidate is chosen, so that nothing is random
        every = {"clip_cov_ratio": 1.0, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0}
        wide = {"clip_ratio_low": 1.0, "clip_ratio_high": 1.0}
        cases.append(
            policy_loss(f"clip_cov every {aggregation}", "clip_cov", aggregation, **wide, **every)
        )
        cases.append(
            policy_loss(
                f"kl_cov top 5 {aggregation}", "kl_cov", aggregation,
                kl_cov_ratio=0.17, ppo_kl_coef=1.0,
            )
        )  # fmt: skip
    tight = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
    cov = {"clip_cov_lb": 1.0, "clip_cov_ub": 5.0}
    cases += [
        policy_loss("clip_cov every, tight clip", "clip_cov", **tight, **every),
        # six qualify, of which one is clipped already: the other five
        policy_loss(
            "clip_cov five, tight clip", "clip_cov", **tight, **every | {"clip_cov_ratio": 0.17}
        ),
        policy_loss("clip_cov nobody", "clip_cov", **wide, **every | {"clip_cov_lb": 4.99}),
        policy_loss(
            "clip_cov default ratio, one candidate", "clip_cov",
            **wide, clip_cov_ratio=2e-4, clip_cov_lb=LONE[0], clip_cov_ub=LONE[1],
        ),
        # which two is random; how many, and among whom, is not
        policy_loss("clip_cov random two", "clip_cov", seed=1, **wide, clip_cov_ratio=0.07, **cov),
        policy_loss("sapo", "sapo", AGGREGATIONS[1], tau_pos=1.0, tau_neg=2.0),
        policy_loss(
            "geo_mean", "geo_mean", AGGREGATIONS[1], advantages="rollout_advantages",
            clip_ratio_low=0.2, clip_ratio_high=0.3,
        ),
        policy_loss("kl_cov top 1", "kl_cov", kl_cov_ratio=2e-3, ppo_kl_coef=1.0),
        policy_loss("kl_cov veRL's coefficient", "kl_cov", kl_cov_ratio=0.17, ppo_kl_coef=0.1),
        policy_loss("kl_cov beyond cov 0", "kl_cov", kl_cov_ratio=0.9, ppo_kl_coef=1.0),
        policy_loss(
            "kl_cov on policy", "kl_cov", inputs="on_policy", kl_cov_ratio=0.17, ppo_kl_coef=1.0
        ),
    ]  # fmt: skip
    return cases


def advantage(
    name: str,
    function: str,
    rewards: list[float],
    group: list[int],
    mask: list[list[int]],
    dtype: torch.dtype = torch.float64,
    **settings: Any,
) -> dict[str, Any]:
    """One case: the reward stands on the last trained token, as veRL's reward managers put it."""
    m = torch.tensor(mask)
    token_rewards = torch.zeros(m.shape, dtype=dtype)
    for i, reward in enumerate(rewards):
        token_rewards[i, int(m[i].nonzero().max())] = reward
    given = settings | {"config": AlgoConfig(gamma=1.0)}
    A, _ = get_adv_estimator_fn(function)(
        token_level_rewards=token_rewards, response_mask=m, index=np.array(group), **given
    )
    return {
        "name": name,
        "function": function,
        "dtype": str(dtype).removeprefix("torch."),
        "settings": settings,
        "rewards": rewards,
        "group": group,
        "mask": mask,
        "advantages": plain(A),
    }


def advantages() -> list[dict[str, Any]]:
    data = INPUTS["ragged"]
    given = (data["rewards"], data["group"], data["mask"])
    cases = [
        advantage(name, name, *given)
        for name in ("grpo", "rloo", "opo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
    ]
    cases.append(advantage("grpo without std", "grpo", *given, norm_adv_by_std_in_grpo=False))
    equal = ([0.9, 0.9, 0.9], [0, 0, 0], [[1, 1]] * 3)
    cases.append(advantage("grpo of equal rewards", "grpo", *equal, dtype=torch.float32))
    lone = ([0.7, 1.0, 0.0], [0, 1, 1], [[1, 1]] * 3)
    for name in ("grpo", "rloo", "opo", "reinforce_plus_plus_baseline"):
        cases.append(advantage(f"{name} of a group of one", name, *lone))
    return cases


def covariances() -> torch.Tensor:
    """Of the trained tokens, largest first; to place bounds, no golden value."""
    data = INPUTS["ragged"]
    m = torch.tensor(data["mask"]).bool()
    lp, A = tensor(data["logp"])[m], tensor(data["advantages"])[m]
    return ((lp - lp.mean()) * (A - A.mean())).sort(descending=True).values


COV = covariances()
# bounds around the third largest covariance alone
LONE = [round(float(COV[i : i + 2].mean()), 4) for i in (2, 1)]


def make() -> dict[str, Any]:
    assert COV[0] > 5, "no covariance above the upper bound"
    assert ((COV > 1) & (COV < 5)).sum() >= 4, "too few candidates"
    return {
        "library": "verl",
        "versions": versions("verl", "torch", "numpy"),
        "inputs": INPUTS,
        "losses": losses(),
        "advantages": advantages(),
    }


if __name__ == "__main__":
    main(make, Path(__file__).with_name("verl.json"), __doc__)
