"""Causal language models: loading, sampling, packing, token statistics, memory."""
