"""A run's files and display: directory, checkpoints, resume, progress, trackers."""
