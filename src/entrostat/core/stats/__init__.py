"""Token statistics: log-prob and exact entropy of each token, with or without the logits."""

from .choose import token_stats
from .plain import token_stats_from_logits
from .reference import TokenStats

__all__ = ["TokenStats", "token_stats", "token_stats_from_logits"]
