"""Mathematics as people write it: read (`read`), and compared (`same`).

An answer becomes tokens (`notation`), a tree (`items`, `reader`), and is compared kind by kind
(`equality`) and by value (`values`). Nothing of it knows of graders or of training; it imports
nothing of entrostat's. math-verify and sympy are asked in `symbolic` alone.
"""

from .equality import same
from .items import read
from .notation import tokens
from .tree import Node, Token

__all__ = ["Node", "Token", "read", "same", "tokens"]
