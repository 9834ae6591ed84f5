"""Token statistics: log-prob and exact entropy of each token."""

from .reference import TokenStats, token_stats, token_stats_from_logits

__all__ = ["TokenStats", "token_stats", "token_stats_from_logits"]
