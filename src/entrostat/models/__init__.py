"""A causal language model at work: loading, sampling, packing, token statistics, memory."""
