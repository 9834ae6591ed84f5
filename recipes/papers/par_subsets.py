"""PAR Table 3's training subsets: from the largest K-means clusters of prompts, and at random.

    python recipes/papers/par_subsets.py dapo_math_17k.jsonl --model Qwen/Qwen2.5-Math-7B

writes dapo_math_17k_kmeans_616.jsonl, dapo_math_17k_random_616.jsonl and so on beside the file.
The rows that train on them are in README.md.

From the paper (App. D.3): a prompt is the mean over its tokens of the model's final layer; K-means;
clusters sorted by their number of prompts, descending; subsets of 10,001, 5,031, 2,538, 1,246 and
616 prompts from the top clusters; as many at random. Lost from the text at hand: K, 1,000 in public
notes on the paper.
Settled here: the prompt as plain text, without a chat template; Lloyd's iterations from random
prompts; inside a cluster the file's order. A subset's last cluster is cut where the number is
reached; the paper's odd numbers suggest that its own are of whole clusters.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from transformers import AutoModel, AutoTokenizer

SIZES = (10_001, 5_031, 2_538, 1_246, 616)


@torch.no_grad()
def embed(model: str, prompts: Sequence[str], batch: int = 16) -> np.ndarray:
    """[n, d] float32: the final layer's states, averaged over each prompt's tokens.

    Args:
        model: a directory or a Hugging Face name.
        prompts: n texts.
        batch: prompts in a forward pass.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="right")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    network = AutoModel.from_pretrained(model, dtype=dtype).to(device).eval()
    means = []
    for start in range(0, len(prompts), batch):
        tokens = tokenizer(list(prompts[start : start + batch]), return_tensors="pt", padding=True)
        mask = tokens["attention_mask"].to(device)  # [batch, T]
        states = network(tokens["input_ids"].to(device), attention_mask=mask).last_hidden_state
        total = (states.float() * mask[..., None]).sum(1)  # [batch, d]
        means.append((total / mask.sum(1, keepdim=True)).cpu().numpy())
    return np.concatenate(means)


def by_cluster(vectors: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """[n] int: the vectors' indices, those of the largest K-means cluster first.

    Args:
        vectors: [n, d] float.
        clusters: K, at most n.
        seed: decides where the centres start.

    Raises:
        ValueError: more clusters than vectors.
    """
    n = len(vectors)
    if not 1 <= clusters <= n:
        raise ValueError(f"--clusters must be from 1 to the number of prompts, {n}, got {clusters}")
    start = vectors[np.random.default_rng(seed).choice(n, clusters, replace=False)]
    _, label = kmeans2(vectors, start, iter=50, minit="matrix")
    size = np.bincount(label, minlength=clusters)
    return np.lexsort((np.arange(n), label, -size[label]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the subsets of a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("file", type=Path, help="JSON lines with a prompt each")
    parser.add_argument("--model", default="Qwen/Qwen2.5-Math-7B")
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    lines = [line for line in given.file.read_text(encoding="utf-8").split("\n") if line.strip()]
    if max(given.sizes) > len(lines):
        parser.error(f"--sizes: {max(given.sizes)} of {len(lines)} prompts")
    vectors = embed(given.model, [json.loads(line)["prompt"] for line in lines])
    orders = {
        "kmeans": by_cluster(vectors, given.clusters, given.seed),
        "random": np.random.default_rng(given.seed).permutation(len(lines)),
    }
    for name, order in orders.items():
        for size in given.sizes:
            path = given.file.with_name(f"{given.file.stem}_{name}_{size}.jsonl")
            # in the file's order: the lab holds out the last lines, which are to be like the others
            chosen = [lines[i] for i in sorted(order[:size])]
            path.write_text("\n".join(chosen) + "\n", encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
