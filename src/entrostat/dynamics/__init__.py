"""Entropy change by an update: per-token estimates and exact derivatives."""

from .derivatives import Piece, entropy_gradient, first_order, influence, influence_in_pieces
from .estimators import ESTIMATORS, estimate
from .model import adamw_preconditioner, forward_mode, functional
from .tables import (
    Agreement,
    Flow,
    Part,
    agreement,
    clipped_sides,
    concentration,
    covariance_table,
    flow,
    parts,
    prompt_covariance,
    quadrants,
    terciles,
)

__all__ = [
    "ESTIMATORS", "Agreement", "Flow", "Part", "Piece", "adamw_preconditioner", "agreement",
    "clipped_sides", "concentration", "covariance_table", "entropy_gradient", "estimate",
    "first_order", "flow", "forward_mode", "functional", "influence", "influence_in_pieces",
    "parts", "prompt_covariance", "quadrants", "terciles",
]  # fmt: skip
