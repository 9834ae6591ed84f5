"""Evaluation of a policy: sampling, accuracy and diversity."""
