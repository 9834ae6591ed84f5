"""What a run has on disk and shows: directory, checkpoints, resume, progress, trackers."""
