"""Where an objective runs: our own loop (`lab`), TRL, veRL; what they share is in `rollouts`."""
