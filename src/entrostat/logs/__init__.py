"""Read and write the logs of a run: metrics, evaluations, rollouts."""
