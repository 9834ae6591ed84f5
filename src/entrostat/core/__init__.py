"""Turns methods into a loss: batches, advantage estimators, the objective, token statistics.

`distributed` reduces over the rollouts of all ranks; `deterministic` has the order-free sums.
"""
