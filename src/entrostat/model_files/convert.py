"""Converts a GGUF file to a float32 model directory that any Hugging Face tool loads."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from ..errors import in_one_line, need

NEEDED = ("gguf", "accelerate")


def check_packages() -> None:
    for package in NEEDED:
        need("models", "reading GGUF files", package)


def convert(gguf: Path, target: Path) -> None:
    with _quiet():
        try:
            model, tokenizer = load_gguf(gguf)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, NotImplementedError) as e:
            raise ValueError(
                f"transformers cannot read {gguf.name}: {in_one_line(e)[:300]}"
            ) from None
        plain = _fresh(model)
        plain.save_pretrained(target)
        if not tokenizer.chat_template:
            tokenizer.chat_template = None  # an empty one would count as a template
        tokenizer.save_pretrained(target)


def load_gguf(gguf: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": gguf.name, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **where)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **where)
    return model, tokenizer


def _fresh(model: Any) -> Any:
    """The same weights in an unquantised model: a quantised one cannot be saved.

    `assign` reuses the tensors, so nothing is in memory twice.
    """
    import torch

    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


@contextmanager
def _quiet() -> Iterator[None]:
    """Context without the libraries' progress bars and hints; exceptions pass through."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
