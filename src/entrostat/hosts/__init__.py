"""Where an objective runs: our own loop (`lab`); TRL and veRL are to follow."""
