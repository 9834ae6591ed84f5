"""Measuring a policy: what is sampled, how often it is right, how different it is."""
