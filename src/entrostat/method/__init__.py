"""Every method by name. One paper, one file; `registry` holds the one dict name -> class.

To add a method here: a file with a frozen dataclass that derives from `Method`, a line in
`METHODS`, a test with hand-computed values (CONTRIBUTING.md). Recipes, the command line and the
trainers find it there. A method outside this package needs only the decorator `register`, or an
entry point of its package in the group `entrostat.methods`.
"""

from .base import Method, Resample
from .compose import MethodSpec, resolve
from .lookup import imported, owners, unknown_method
from .recipes import RECIPES
from .registry import METHODS, MethodInfo, is_ours, methods, register

__all__ = [
    "METHODS",
    "RECIPES",
    "Method",
    "MethodInfo",
    "MethodSpec",
    "Resample",
    "imported",
    "is_ours",
    "methods",
    "owners",
    "register",
    "resolve",
    "unknown_method",
]
