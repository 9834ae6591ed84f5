"""Reading (`read`) and comparing (`same`) mathematics as people write it.

An answer is split into tokens (`notation`) and parsed to a tree (`items`, `reader`). Trees are
compared by kind (`equality`) and by value (`values`). The package knows nothing of graders or
training and imports nothing else of entrostat. Only `symbolic` uses math-verify and sympy.
"""

from .equality import same
from .items import read
from .notation import tokens
from .tree import Node, Token

__all__ = ["Node", "Token", "read", "same", "tokens"]
