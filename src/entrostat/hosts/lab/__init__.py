"""The lab: our own training loop, for any Hugging Face causal LM, on CPU or one GPU."""

from .loop import train

__all__ = ["train"]
