"""Settings that remedies advise, in each trainer's syntax (docs/remedies.md)."""

from __future__ import annotations

LAB, TRL, VERL, SLIME, PRIME = "entrostat", "TRL", "veRL", "slime", "prime-rl"
SWIFT, NEMO, AREAL, OPENRLHF, SKYRL = "ms-swift", "NeMo-RL", "AReaL", "OpenRLHF", "SkyRL"

_VERL_FILTER = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
# setting -> trainer -> flag or line, with {n} for the number
FLAGS: dict[str, dict[str, str]] = {
    "lr": {
        LAB: "--optim.lr {n}", TRL: "learning_rate={n}", SWIFT: "--learning_rate {n}",
        VERL: "actor_rollout_ref.actor.optim.lr={n}", SLIME: "--lr {n}",
        PRIME: "--trainer.optim.lr {n}", NEMO: "policy.optimizer.kwargs.lr={n}",
        AREAL: "actor.optimizer.lr={n}", OPENRLHF: "--actor.adam.lr {n}",
        SKYRL: "trainer.policy.optimizer_config.lr={n}",
    },
    "length": {
        LAB: "--sampling.max-new-tokens {n}",
        TRL: "max_completion_length={n}, mask_truncated_completions=True",
        SWIFT: "--max_completion_length {n}", VERL: "data.max_response_length={n}",
        SLIME: "--rollout-max-response-len {n}",
        PRIME: "--orchestrator.train.sampling.max-completion-tokens {n}  "
               "# and a --seq-len that holds prompt and answer",
        NEMO: "policy.max_total_sequence_length={n}  # prompt and answer",
        AREAL: "gconfig.max_new_tokens={n}", OPENRLHF: "--rollout.max_new_tokens {n}",
        SKYRL: "generator.sampling_params.max_generate_length={n}",
    },
    "rollouts": {
        LAB: "--sampling.rollouts {n}", TRL: "num_generations={n}", SWIFT: "--num_generations {n}",
        VERL: "actor_rollout_ref.rollout.n={n}",
        SLIME: f"--n-samples-per-prompt {{n}} --dynamic-sampling-filter-path {_VERL_FILTER}",
        PRIME: "--orchestrator.group-size {n}", NEMO: "grpo.num_generations_per_prompt={n}",
        AREAL: "gconfig.n_samples={n}", OPENRLHF: "--rollout.n_samples_per_prompt {n}",
        SKYRL: "generator.n_samples_per_prompt={n}",
    },
    "updates": {
        LAB: "--optim.epochs 1 --optim.minibatches 2", TRL: "num_iterations=1",
        SWIFT: "--num_iterations 1", SLIME: "--num-steps-per-rollout 2",
        VERL: "actor_rollout_ref.actor.ppo_epochs=1 "
              "actor_rollout_ref.actor.ppo_mini_batch_size={n}",
    },
    "correction": {
        LAB: "--precision fp32", TRL: "vllm_importance_sampling_correction=True",
        VERL: "algorithm.rollout_correction.rollout_is=token "
              "algorithm.rollout_correction.rollout_is_threshold=2.0",
        SLIME: "--use-tis", PRIME: "--orchestrator.max-off-policy-steps 1",
        NEMO: "loss_fn.use_importance_sampling_correction=true",
        SKYRL: "trainer.algorithm.use_tis=true",
        OPENRLHF: "--algo.advantage.is_correction_enable",
    },
    "per_token": {
        TRL: "from entrostat.trainers.trl import EntropyGRPOTrainer\n"
             "trainer = EntropyGRPOTrainer(..., objective=None)  # TRL's loss, our figures",
        VERL: "actor_rollout_ref.actor.loss_agg_mode=token-mean",
        SLIME: "--calculate-per-token-loss",
    },
    "bonus": {VERL: "actor_rollout_ref.actor.entropy_coeff=0", SLIME: "--entropy-coef 0"},
    "harder": {
        SLIME: f"--dynamic-sampling-filter-path {_VERL_FILTER}",
        PRIME: "--orchestrator.train.source.0.curriculum.sampler.type difficulty_pool",
    },
    "clip_high": {
        SLIME: "--eps-clip-high 0.28", VERL: "actor_rollout_ref.actor.clip_ratio_high=0.28",
        TRL: "epsilon_high=0.28", SWIFT: "--epsilon_high 0.28",
    },
    "entropy": {
        VERL: "actor_rollout_ref.actor.calculate_entropy=true", SWIFT: "--log_entropy true",
        OPENRLHF: "--actor.entropy_coef 0",
    },
}  # fmt: skip
SWITCH = {
    TRL: "TRL logs entropy from 0.20 on: upgrade it.",
    VERL: "veRL computes it from 0.7 on only where that is asked for.",
    SWIFT: "ms-swift logs it where that is asked for.",
    NEMO: "NeMo-RL's console has none; W&B and TensorBoard have it as train/approx_entropy.",
    OPENRLHF: "OpenRLHF logs it where the bonus has a coefficient, which may be 0 "
              "(up to 0.9 --entropy_loss_coef 0).",
}  # fmt: skip
