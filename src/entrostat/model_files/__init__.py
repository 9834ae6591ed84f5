"""Sources of a model: shipped, a package of an index, the cache, or the hub."""

from .catalogue import MODELS, KnownModel, Wheel
from .names import (
    NOWHERE,
    TINY,
    cache_directory,
    check_model,
    find,
    is_ours,
    is_tiny,
    is_whole,
    model_directory,
    provenance,
    tiny_directory,
    tiny_size,
    write_provenance,
)

__all__ = [
    "MODELS", "NOWHERE", "TINY", "KnownModel", "Wheel", "cache_directory", "check_model", "find",
    "is_ours", "is_tiny", "is_whole", "model_directory", "provenance", "tiny_directory",
    "tiny_size", "write_provenance",
]  # fmt: skip
