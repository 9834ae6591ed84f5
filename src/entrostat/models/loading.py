"""Loads the policy named by a configuration.

`capabilities` then tests what the loaded model can do.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from safetensors import SafetensorError

from ..config import NOWHERE, TrainConfig, check_model
from ..errors import extra
from ..model_files import find, provenance
from . import capabilities
from .policy import Policy, end_tokens, pad_token
from .rounding import DTYPES


def load_policy(config: TrainConfig) -> Policy:
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = device_of(config.device)
    check_model(config.model)
    name = find(config.model)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name, dtype=torch.float32, use_safetensors=True, trust_remote_code=False,
            output_loading_info=True,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0][:300]
        cause = error.__cause__
        if isinstance(cause, LocalEntryNotFoundError):
            reason = "no such directory, and the hub could not be reached to look for that name"
        elif isinstance(cause, RepositoryNotFoundError) and not isinstance(cause, GatedRepoError):
            reason = NOWHERE
        raise ValueError(f"model {config.model!r}: cannot load it: {reason}") from None
    model, info = loaded
    if info["missing_keys"]:  # transformers would fill them with random numbers
        missing = sorted(info["missing_keys"])
        raise ValueError(
            f"model {config.model!r}: its weights lack {len(missing)} of the tensors that its "
            f"config.json asks for ({', '.join(missing[:3])})"
        )
    _no_dropout(model)
    if config.gradient_checkpointing:
        # transformers renamed it; the old name warns, older releases have no other
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    if config.lora.rank:
        model = _with_lora(model, config)
    model.to(device)
    model.eval()
    for module in model.modules():
        # checkpointing checks whether the layer is in train mode; its submodules need not be
        if config.gradient_checkpointing and hasattr(module, "gradient_checkpointing"):
            module.training = True
    eos = end_tokens(model, tokenizer)
    pad = pad_token(model, tokenizer, eos)
    autocast: Callable[[], AbstractContextManager] = nullcontext
    if config.precision != "fp32":
        autocast = partial(torch.autocast, device.type, dtype=DTYPES[config.precision])
    context = getattr(model.config, "max_position_embeddings", None)
    policy = Policy(
        model, tokenizer, device, eos, pad, autocast, context,
        origin=provenance(name),
    )  # fmt: skip
    # weights are float32: without autocast the two computations differ by rounding only
    policy.autocast = nullcontext
    policy.packs, policy.window = capabilities.can_pack(policy), capabilities.window(policy)
    policy.rows = capabilities.attends_rows(policy) and not config.gradient_checkpointing
    policy.shares = capabilities.can_share(policy, config.model)
    policy.prepacks = capabilities.prepacks(policy, config.precision)
    policy.graphs = device.type == "cuda" and capabilities.can_graph(policy)
    policy.head = capabilities.known_head(policy)
    policy.autocast = autocast
    policy.half = DTYPES.get(config.precision)
    return policy


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device, count = torch.device(name), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(f"device {name!r}: usable GPUs here: {count}; use --device cpu")
    return device


def _no_dropout(model: torch.nn.Module) -> None:
    """Disable dropout: ratios compare two passes over the same weights, which must agree."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(module, name, 0.0)


def _with_lora(model: Any, config: TrainConfig) -> Any:
    with extra("peft", "lora.rank"):
        from peft import LoraConfig, get_peft_model
    targets: Any = config.lora.targets
    if targets != "all-linear":
        targets = [name.strip() for name in targets.split(",")]
    try:
        settings = LoraConfig(
            r=config.lora.rank, lora_alpha=config.lora.alpha, target_modules=targets,
            lora_dropout=0.0, task_type="CAUSAL_LM",
        )  # fmt: skip
        if config.gradient_checkpointing:
            model.enable_input_require_grads()
        return get_peft_model(model, settings)
    except ValueError as error:
        raise ValueError(f"lora.targets {config.lora.targets!r}: {error}") from None


def learning_rate(config: TrainConfig, small: bool) -> float:
    """The configured learning rate, or the default for a model below ten million parameters."""
    if config.optim.lr is not None:
        return config.optim.lr
    if config.lora.rank:
        return 1e-5
    return 3e-4 if small else 1e-6
