"""Measurements of a live policy: exact entropy changes of updates, influence, responses."""
