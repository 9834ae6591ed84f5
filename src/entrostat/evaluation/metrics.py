"""Scores and diversity of n samples per prompt, calibration, mutual information. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._names import unknown
from ..errors import extra
from .statistics import auroc as auroc
from .statistics import expected_calibration_error as expected_calibration_error
from .statistics import maj_at_k as maj_at_k
from .statistics import number_lists

Response = str | Sequence[Hashable]  # a text, or its tokens

# tokenizers of sacrebleu that need no other package and no download
_TOKENIZERS = ("13a", "char", "intl", "none", "zh")


def avg_at_k(correct: Sequence[Sequence[float]] | np.ndarray) -> float:
    """Mean score over all samples: avg@k of [prompts, k] numbers in 0..1.

    Raises:
        ValueError: no samples.
    """
    scores = np.asarray(correct, dtype=np.float64)
    if scores.size == 0:
        raise ValueError("avg_at_k: no samples")
    return float(scores.mean())


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of pass@k from n samples of which c are right.

    1 - C(n - c, k) / C(n, k), Chen et al. (arXiv 2107.03374), in integers, so pass@1 is avg@n.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.

    Example:
        >>> pass_at_k(4, 1, 2)
        0.5
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass_at_k: need 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    every = comb(n, k)
    return (every - comb(n - c, k)) / every


def distinct_correct(samples: Sequence[Hashable], correct: Sequence[float]) -> int:
    """Number of distinct right answers among the samples of one prompt."""
    return len({s for s, ok in zip(samples, correct, strict=True) if ok >= 1})


def ngram_diversity(responses: Sequence[Response], n: int = 4, tokenize: str = "13a") -> float:
    """Share of distinct n-grams among all n-grams of the responses, in (0, 1].

    PAR App. C.1, Eq. 8 (Li et al., 2016): distinct n-grams of an order over all of that order. The
    formula and the orders are missing from the paper's extracted text. This function takes the mean
    over the orders 1 to n, with n = 4 as in PAR's Self-BLEU, so the value is a proportion. (Others
    take the sum over the orders: n times this.) N-grams are pooled over the responses and do not
    cross from one to the next. An order that no response is long enough for is left out.

    The share falls as texts get longer: compare equal numbers of responses of similar length. The
    responses should belong to one prompt; over several prompts, average the values.

    Args:
        responses: k texts, or k sequences of tokens such as ids, used as they are.
        n: largest order.
        tokenize: tokenizer for texts: sacrebleu's "13a" (words and punctuation), "char", "intl",
            "zh" or "none" (split at spaces).

    Raises:
        ValueError: n below 1, an unknown tokenizer, a single text, or no word in any response.

    Example:
        >>> ngram_diversity(["a b", "a c"], n=1)  # a, b and c of four words
        0.75
    """
    _check_count("ngram_diversity", n, "n")
    words = _words("ngram_diversity", responses, tokenize)
    shares = []
    for order in range(1, n + 1):
        pooled: Counter[tuple[Hashable, ...]] = Counter()
        for row in words:
            pooled.update(_ngrams(row, order))
        if pooled:
            shares.append(len(pooled) / pooled.total())
    if not shares:
        raise ValueError(
            f"ngram_diversity: there is no word in the {len(words)} responses; give one that is "
            "not empty"
        )
    return sum(shares) / len(shares)


def self_bleu(
    responses: Sequence[Response],
    n: int = 4,
    average: Literal["orders", "geometric"] = "orders",
    tokenize: str = "13a",
    smooth: Literal["floor", "exp", "none"] = "floor",
) -> float:
    """Mean BLEU of each response against all others as references, in [0, 1]; 1 if all are equal.

    PAR App. C.1 (Zhu et al., 2018, arXiv 1802.01886). PAR's "BLEU scores, averaged over 1- to
    4-gram" is read literally: the mean of BLEU-1, ..., BLEU-4, where BLEU-i is the brevity penalty
    times the geometric mean of the clipped precisions of orders 1 to i. `average="geometric"` is
    BLEU-n alone, the usual BLEU.

    BLEU is sacrebleu's sentence BLEU over 100, with the closest reference length. An order without
    a match counts as 0.1 matches (`smooth="floor"`, as in the code of Zhu et al.). A response that
    shares no word with another, or is empty, has BLEU 0. Orders longer than the response are left
    out (`effective_order`). The k responses share their counts, so time grows with k, not k^2.

    Args:
        responses: k >= 2 texts of one prompt, or k sequences of tokens; over several prompts,
            average the values.
        n: largest order.
        average: "orders" or "geometric".
        tokenize: as in `ngram_diversity`.
        smooth: sacrebleu's smoothing of orders without a match.

    Raises:
        ValueError: fewer than two responses, a single text, n below 1, an unknown name.

    Example:
        >>> self_bleu(["a b c d", "a b c d"])
        1.0
    """
    _check_count("self_bleu", n, "n")
    if average not in ("orders", "geometric"):
        raise ValueError(f"self_bleu: {unknown('average', average, ('orders', 'geometric'))}")
    if smooth not in ("floor", "exp", "none"):
        raise ValueError(f"self_bleu: {unknown('smooth', smooth, ('floor', 'exp', 'none'))}")
    words = _words("self_bleu", responses, tokenize)
    if len(words) < 2:
        raise ValueError(
            f"self_bleu: responses must be two or more, got {len(words)}; each is compared with "
            "the others"
        )
    with extra("eval", "self_bleu"):
        from sacrebleu.metrics.bleu import BLEU

    counts = [[Counter(_ngrams(row, order)) for order in range(1, n + 1)] for row in words]
    most = [_two_largest([count[i] for count in counts]) for i in range(n)]
    lengths = Counter(map(len, words))
    total = 0.0
    for row, count in zip(words, counts, strict=True):
        matched = [_clipped(count[i], most[i]) for i in range(n)]
        possible = [count[i].total() for i in range(n)]
        reference = _closest_other(len(row), lengths)
        scores = [
            BLEU.compute_bleu(
                matched[:top], possible[:top], len(row), reference,
                smooth_method=smooth, effective_order=True, max_ngram_order=top,
            ).score
            for top in (range(1, n + 1) if average == "orders" else (n,))
        ]  # fmt: skip
        total += sum(scores) / len(scores) / 100
    return min(1.0, total / len(words))


def mutual_information(
    x: ArrayLike, y: ArrayLike, bins: int | tuple[int, int] = 10, correct_bias: bool = False
) -> float:
    """Mutual information of two variables from their histogram, in nats.

    I = sum over cells of p_ij ln(p_ij / (p_i p_j)), p the shares of the N pairs in a grid of bins
    of equal width from the smallest to the largest value. REPO App. E.3, Tab. 6 estimates in this
    way the information between the test accuracy of checkpoints and the iteration, or the
    cumulative entropy up to it (`numpy.cumsum` of the entropies). It states neither bins nor unit,
    so values are comparable only within one setting.

    The estimate is biased upwards: for independent variables by about (K_x - 1)(K_y - 1) / (2 N)
    nats, K the bins in use. `correct_bias` subtracts the first order,
    (K_xy - K_x - K_y + 1) / (2 N), K_xy the cells in use (Miller 1955); the result may then be
    below 0. With sparse cells, N below about K_x K_y, neither estimate is reliable.

    Args:
        x: [N].
        y: [N], of the same points.
        bins: bins for both, or (for x, for y).
        correct_bias: subtract the first-order bias.

    Raises:
        ValueError: not two lists of equal length, not finite, empty, or bins below 1.

    Example:
        >>> round(mutual_information([0, 0, 1, 1], [0, 0, 1, 1], bins=2), 6)  # ln 2
        0.693147
    """
    where = "mutual_information"
    first, second = number_lists(where, x=x, y=y)
    grid = bins if isinstance(bins, tuple) else (bins, bins)
    if len(grid) != 2:
        raise ValueError(f"{where}: bins must be one number or (of x, of y), got {bins!r}")
    for count in grid:
        _check_count(where, count, "bins")
    cells = np.histogram2d(first, second, bins=grid)[0]
    rows, columns, size = cells.sum(1), cells.sum(0), len(first)
    used = cells > 0
    expected = np.outer(rows, columns)[used] / size
    found = float((cells[used] * np.log(cells[used] / expected)).sum() / size)
    if correct_bias:
        excess = used.sum() - (rows > 0).sum() - (columns > 0).sum() + 1
        return found - float(excess) / (2 * size)
    return max(0.0, found)  # rounding


@dataclass(frozen=True, eq=False)
class Calibration:
    """Log-probs of right and wrong responses. Values of a side without responses are NaN.

    Attributes:
        right: [R] float64, mean log-prob per token of each right response, nats.
        wrong: [W] float64, the same for wrong responses.
        right_mean: mean of `right`.
        wrong_mean: mean of `wrong`.
        gap: right_mean - wrong_mean; above 0 if right responses are likelier. PAR calls a shrinking
            gap miscalibration.
        auc: probability that a right response has a higher log-prob than a wrong one, ties counting
            half; 0.5 if log-probs do not separate them. Unlike the gap, it does not depend on the
            scale of the log-probs.
        edges: [bins + 1] nats, edges of the common bins.
        right_density: [bins] density of `right`, per nat; its integral is 1.
        wrong_density: [bins] density of `wrong`.
    """

    right: NDArray[np.float64]
    wrong: NDArray[np.float64]
    right_mean: float
    wrong_mean: float
    gap: float
    auc: float
    edges: NDArray[np.float64]
    right_density: NDArray[np.float64]
    wrong_density: NDArray[np.float64]


def calibration(logp: ArrayLike, score: ArrayLike, bins: int = 30) -> Calibration:
    """Compare log-probs of right and wrong responses (PAR 5.3, Fig. 2 and 23).

    A well-calibrated policy gives right responses higher probability. Each response counts once, by
    its mean log-prob per token under the policy that wrote it, so length alone does not make it
    unlikely. The paper shows the two distributions and gives no number. `gap` is its "probability
    gap", in log-probs as in its figures; `auc` is an addition.

    Args:
        logp: [N] mean log-prob per token of each response, nats, at most 0.
        score: [N] rewards; a response is right from 1 on, as in `distinct_correct`.
        bins: bins of the densities, from the smallest to the largest log-prob.

    Raises:
        ValueError: not two lists of equal length, empty, not finite, a log-prob above 0, or bins
            below 1.

    Example:
        >>> c = calibration([-0.1, -0.3, -0.5, -0.7], [1, 0, 1, 0])
        >>> round(c.gap, 6), c.auc
        (0.2, 0.75)
    """
    values, scores = number_lists("calibration", logp=logp, score=score)
    if values.max() > 1e-3:  # rounding may take log-probs slightly above 0
        raise ValueError(
            f"calibration: logp[{int(values.argmax())}] is {values.max():g}, above 0; give "
            "log-probs in nats, not probabilities or negative log-probs"
        )
    _check_count("calibration", bins, "bins")
    right, wrong = values[scores >= 1], values[scores < 1]
    edges = np.histogram_bin_edges(values, bins)
    right_mean, wrong_mean = (float(s.mean()) if s.size else np.nan for s in (right, wrong))
    right_density, wrong_density = (
        np.histogram(s, edges, density=True)[0] if s.size else np.full(bins, np.nan)
        for s in (right, wrong)
    )
    return Calibration(
        right, wrong, right_mean, wrong_mean, right_mean - wrong_mean, auroc(values, scores),
        edges, right_density, wrong_density,
    )  # fmt: skip


def _words(where: str, responses: Sequence[Response], tokenize: str) -> list[Sequence[Hashable]]:
    if isinstance(responses, str):
        raise ValueError(
            f"{where}: responses must be a list of texts, got one text, {responses[:40]!r}; put it "
            "in a list"
        )
    if tokenize not in _TOKENIZERS:
        raise ValueError(f"{where}: {unknown('tokenizer', tokenize, _TOKENIZERS)}")
    if not any(isinstance(response, str) for response in responses):
        return [_as_tokens(response) for response in responses]
    with extra("eval", f"{where} of text"):
        from sacrebleu.metrics.bleu import BLEU

    split = BLEU(tokenize=tokenize).tokenizer
    return [
        split(response.rstrip()).split() if isinstance(response, str) else _as_tokens(response)
        for response in responses
    ]


def _as_tokens(response: Any) -> list[Hashable]:
    """Convert to plain values: tensor elements are never equal as keys."""
    return response.tolist() if hasattr(response, "tolist") else list(response)


def _ngrams(words: Sequence[Hashable], order: int) -> zip[tuple[Hashable, ...]]:
    return zip(*(words[i:] for i in range(order)), strict=False)


def _two_largest(counts: Sequence[Counter[Any]]) -> dict[Any, tuple[int, int]]:
    """For each n-gram, its largest count in a response, and its largest in any other."""
    found: dict[Any, tuple[int, int]] = {}
    for count in counts:
        for gram, times in count.items():
            first, second = found.get(gram, (0, 0))
            found[gram] = (times, first) if times > first else (first, max(second, times))
    return found


def _clipped(count: Counter[Any], most: dict[Any, tuple[int, int]]) -> int:
    """Matches of one response's n-grams, each clipped at its largest count in the others."""
    total = 0
    for gram, times in count.items():
        first, second = most[gram]
        # if this response has the largest count, the others have at most the second
        total += second if times == first else times
    return total


def _closest_other(length: int, lengths: Counter[int]) -> int:
    """Closest length of another response; the shorter of two equally close ones."""
    if lengths[length] > 1:
        return length
    return min((other for other in lengths if other != length), key=lambda o: (abs(o - length), o))


def _check_count(where: str, value: Any, name: str) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{where}: {name} must be a whole number of 1 or more, got {value!r}")
