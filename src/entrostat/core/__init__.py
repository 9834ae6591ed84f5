"""What methods become a loss with: batches, estimators, the objective, token statistics.

`distributed` reduces over the rollouts of all ranks, `deterministic` has the order-free sums.
"""
