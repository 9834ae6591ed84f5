"""Choosing tokens, the cache with room and stop strings, against exact sums and plain loops."""

from __future__ import annotations

import copy
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

import entrostat as es
from builders import refused
from entrostat.config import TrainConfig, from_dict, load
from entrostat.data.prompts import stop_strings
from entrostat.errors import RunStopped
from entrostat.models.capabilities import can_graph
from entrostat.models.kv_cache import GraphedDecoder, RoomyLayer, branch
from entrostat.models.policy import Policy
from entrostat.models.rollout import LARGE, Sequences, _look_up, choose, sample
from entrostat.models.stops import Stops, cut
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.lab import train
from long_cases import keep

JUST_BELOW_1 = 1 - 2**-53  # the largest that torch.rand gives in float64


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------------------ choose


def frequencies(
    logits: Tensor, temperature: float, top_p: float = 1.0, thousands: int = 20
) -> Tensor:
    """Counts [V] of tokens drawn from logits [V], a thousand rows at a time."""
    g, counts = generator(0), torch.zeros(len(logits), dtype=torch.int64)
    for _ in range(thousands):
        rows = logits.repeat(1000, 1)
        counts += torch.bincount(choose(rows, temperature, top_p, g)[0], minlength=len(logits))
    return counts


def assert_follows(counts: Tensor, p: np.ndarray, bins: np.ndarray) -> None:
    """Chi-square over bins, at a bound that is exceeded one time in 10,000."""
    found = np.bincount(bins, weights=counts.numpy())
    expected = np.bincount(bins, weights=p) * int(counts.sum())
    assert (found[expected == 0] == 0).all()
    assert expected[expected > 0].min() > 5
    found, expected = found[expected > 0], expected[expected > 0]
    statistic = ((found - expected) ** 2 / expected).sum()
    assert statistic < chi2.ppf(0.9999, len(expected) - 1)


@pytest.mark.parametrize("V", [4096, 5000])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_frequencies_over_a_large_vocabulary(V: int, temperature: float) -> None:
    """By block, by place within a block, and token by token for those that are drawn often."""
    logits = torch.randn(V, generator=generator(1))
    p = np.exp(logits.double().numpy() / temperature)
    p /= p.sum()
    counts = frequencies(logits, temperature)
    token = np.arange(V)
    assert_follows(counts, p, token // 256)
    assert_follows(counts, p, token % 256)
    rank = np.empty(V, dtype=np.int64)
    rank[np.argsort(-p)] = token
    assert_follows(counts, p, np.minimum(rank, 40))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_log_prob_is_that_of_float64(temperature: float, dtype: torch.dtype) -> None:
    logits = (4 * torch.randn(64, 49_152, generator=generator(2))).to(dtype)
    exact = torch.log_softmax(logits.double() / temperature, -1)
    token, logp = choose(logits, temperature, 1.0, generator(3))
    assert logp.dtype == torch.float32
    expected = exact.gather(1, token[:, None])[:, 0]
    torch.testing.assert_close(logp.double(), expected, atol=4e-6, rtol=0)


@pytest.mark.parametrize("V", [100, 4096, 5000])
def test_what_is_impossible_is_never_drawn(V: int) -> None:
    """Half of the vocabulary, whole blocks of it, or all but one token."""
    logits = torch.randn(3000, V, generator=generator(4))
    logits[:1000, ::2] = -torch.inf
    logits[1000:2000, : V - 40] = -torch.inf
    logits[2000:] = -torch.inf
    only = torch.randint(V, (1000,), generator=generator(5))
    logits[torch.arange(2000, 3000), only] = -3.0
    token, logp = choose(logits.clone(), 1.0, 1.0, generator(6))
    assert torch.isfinite(logits.gather(1, token[:, None])).all()
    assert torch.equal(token[2000:], only)
    assert (logp[2000:] == 0).all()
    exact = torch.log_softmax(logits.double(), -1).gather(1, token[:, None])[:, 0]
    torch.testing.assert_close(logp.double(), exact, atol=4e-6, rtol=0)


@pytest.mark.parametrize(
    ("V", "bad"),
    [
        (100, torch.nan), (4096, torch.nan), (5000, torch.nan),
        (100, torch.inf), (4096, torch.inf), (5000, torch.inf),
    ],
)  # fmt: skip
def test_logits_that_are_none_have_no_log_prob(V: int, bad: float) -> None:
    logits = torch.zeros(3, V)
    logits[1, 7] = bad
    token, logp = choose(logits, 1.0, 1.0, generator(0))
    assert logp[1].isnan()
    assert ((token >= 0) & (token < V)).all()


@pytest.mark.parametrize("V", [300, 4096, 5000])
def test_logits_that_are_none_stop_the_run_whatever_the_vocabulary(V: int) -> None:
    refused(lambda: parrot({1: [2, 3]}, V=V, broken=True), "logits", error=RunStopped)


@pytest.mark.parametrize(
    ("V", "temperature"),
    [(100, 1.0), (100, 0.5), (5000, 1.0), (5000, 0.5)],
)
def test_logits_are_only_read(V: int, temperature: float) -> None:
    logits = torch.randn(4, V, generator=generator(7))
    before = logits.clone()
    choose(logits, temperature, 1.0, generator(8))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_small_vocabularies_draw_as_torch_multinomial(temperature: float) -> None:
    logits = torch.randn(500, LARGE - 1, generator=generator(9))
    p = torch.log_softmax(logits / temperature, -1).exp()
    expected = torch.multinomial(p, 1, generator=generator(10))[:, 0]
    token, logp = choose(logits, temperature, 1.0, generator(10))
    assert torch.equal(token, expected)
    exact = torch.log_softmax(logits.double() / temperature, -1).gather(1, token[:, None])[:, 0]
    torch.testing.assert_close(logp.double(), exact, atol=4e-6, rtol=0)


@pytest.mark.long
def test_nucleus_of_a_large_vocabulary() -> None:
    """Frequencies are those within the nucleus, log-probs those of the whole distribution."""
    logits = 2 * torch.randn(5000, generator=generator(11))
    p = np.exp(logits.double().numpy())
    p /= p.sum()
    order = np.argsort(-p)
    inside = order[: int(np.searchsorted(np.cumsum(p[order]), 0.4)) + 1]
    assert 20 < len(inside) < 1000
    kept = np.zeros(5000)
    kept[inside] = p[inside] / p[inside].sum()
    rank = np.empty(5000, dtype=np.int64)
    rank[order] = np.arange(5000)
    # by tens within the nucleus; what is outside has no probability at all
    bins = np.where(rank < len(inside), rank // 10, len(inside))
    assert_follows(frequencies(logits, 1.0, top_p=0.4, thousands=3), kept, bins)
    token, logp = choose(logits.repeat(100, 1), 1.0, 0.4, generator(12))
    exact = torch.from_numpy(np.log(p))[token]
    torch.testing.assert_close(logp.double(), exact, atol=4e-6, rtol=0)


# the cumulative sums of `_look_up`


def looked_up(weights: Tensor, u: list[float]) -> list[int]:
    """Entries of one row of weights for several u."""
    at = torch.tensor(u, dtype=torch.float64)
    token, total = _look_up(weights.repeat(len(u), 1), at)
    assert total.tolist() == [float(weights.double().sum())] * len(u)
    return token.tolist()


def test_look_up_by_hand() -> None:
    # 1024 equal entries: entry i has u in [i / 1024, (i + 1) / 1024)
    ones = torch.ones(1024)
    below = np.nextafter
    found = looked_up(
        ones,
        [
            0.0,
            2**-60,
            below(2**-10, 0),
            2**-10,
            below(0.25, 0),
            0.25,
            0.5,
            1 - 2**-10,
            JUST_BELOW_1,
        ],
    )
    # .25 is where the second block of 256 begins
    assert found == [0, 0, 0, 1, 255, 256, 512, 1023, 1023]
    # 600 entries are two whole blocks and a part; 599.5 / 600 is within the last
    assert looked_up(torch.ones(600), [0.0, 599.5 / 600, JUST_BELOW_1]) == [0, 599, 599]


def test_look_up_passes_over_what_has_no_probability() -> None:
    # 5 has a quarter and 700 the rest; blocks 1 and 3 are empty, as are the ends of 0 and 2
    e = torch.zeros(1024)
    e[5], e[700] = 1, 3
    quarter = np.nextafter(0.25, 0)
    assert looked_up(e, [0.0, 2**-53, quarter, 0.25, JUST_BELOW_1]) == [5, 5, 5, 700, 700]
    # a single entry, also the last of a vocabulary that is no multiple of 256
    for V, place in ((1024, 0), (1024, 255), (1024, 256), (1024, 1023), (5000, 4999), (5000, 4864)):
        e = torch.zeros(V)
        e[place] = 0.3
        assert looked_up(e, [0.0, 2**-53, 0.5, JUST_BELOW_1]) == [place] * 4


@given(st.data())
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_look_up_is_the_inverse_of_the_cumulative_sum(data: st.DataObject) -> None:
    """Whole-number weights add up exactly, so the entry is that of numpy's cumulative sum."""
    V = data.draw(st.integers(1, 1300))
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    e = rng.integers(0, data.draw(st.sampled_from([2, 3, 1000])), V)
    e[rng.random(V) < data.draw(st.sampled_from([0.0, 0.5, 0.99]))] = 0
    begin, end = sorted(rng.integers(0, V + 1, 2))
    if data.draw(st.booleans()):
        e[begin:end] = 0  # blocks without any
    assume(e.sum() > 0)
    upto = np.cumsum(e).astype(np.float64)
    # the borders themselves, as near as doubles come, and anything between
    borders = rng.choice(upto, 20) / upto[-1]
    u = np.concatenate(
        [borders, np.nextafter(borders, 0), np.nextafter(borders, 1), rng.random(20)]
    )
    u = np.append(u[u < 1], [0.0, JUST_BELOW_1])
    expected = np.searchsorted(upto, u * upto[-1], side="right")
    found, _ = _look_up(torch.from_numpy(e).float().repeat(len(u), 1), torch.from_numpy(u))
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("V", [4096, 5000])
def test_look_up_of_any_weights_is_right_up_to_rounding(V: int) -> None:
    """Sums of float32 over a block may differ from exact ones by 256 x 2^-24 of themselves."""
    rows = 400
    e = torch.randn(rows, V, generator=generator(13)).mul(4).exp()
    last = torch.randint(1, V, (rows,), generator=generator(14))
    e[torch.arange(V) > last[:, None]] = 0
    exact = e.double().cumsum(-1)
    total = exact[:, -1]
    # where blocks end, from both sides, where all ends, and anywhere
    edges = exact[:, 255::256].double() / total[:, None]
    u = torch.rand(rows, 8, generator=generator(15), dtype=torch.float64)
    edge = edges.gather(1, torch.randint(edges.shape[1], (rows, 4), generator=generator(16)))
    u[:, :4] = torch.where(edge < 1, edge, JUST_BELOW_1)
    u[:, 4] = JUST_BELOW_1
    for column in u.T:
        found, sums = _look_up(e, column)
        torch.testing.assert_close(sums, total, rtol=2e-6, atol=0)
        assert (e.gather(1, found[:, None]) > 0).all()
        goal, slack = column * total, 2e-5 * total
        assert (exact.gather(1, found[:, None])[:, 0] >= goal - slack).all()
        before = torch.where(found > 0, exact.gather(1, (found - 1).clamp(min=0)[:, None])[:, 0], 0)
        assert (before <= goal + slack).all()
        assert (found <= last).all()


# ------------------------------------------------------------------------------------------- cache


def states(rows: int, places: int, seed: int) -> tuple[Tensor, Tensor]:
    """Keys and values [rows, 2, places, 4]."""
    g = generator(seed)
    return tuple(torch.randn(rows, 2, places, 4, generator=g) for _ in range(2))  # type: ignore[return-value]


@given(
    prompt=st.integers(1, 80),
    room=st.integers(0, 100),
    steps=st.lists(st.sampled_from([1, 1, 1, 2, 30, 70, 150, "select"]), max_size=25),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_a_roomy_layer_is_a_dynamic_layer(
    prompt: int, room: int, steps: list[Any], seed: int
) -> None:
    """The same keys and values after any sequence of updates and selections, in place or not."""
    rows, repeats = 3, 2
    cache, plain = DynamicCache(), DynamicLayer()
    keys, values = states(rows, prompt, seed)
    cache.update(keys, values, 0)
    plain.update(keys, values)
    branch(cache, repeats, room)
    plain.batch_repeat_interleave(repeats)
    roomy = cache.layers[0]
    assert type(roomy) is RoomyLayer
    rng, rows = np.random.default_rng(seed), rows * repeats
    for i, step in enumerate(steps):
        if step == "select":
            chosen = rng.permutation(rows)[: rng.integers(1, rows + 1)].copy()
            rows = len(chosen)
            roomy.batch_select_indices(torch.from_numpy(chosen))
            plain.batch_select_indices(torch.from_numpy(chosen))
            found, expected = (roomy.keys, roomy.values), (plain.keys, plain.values)
        else:
            new = states(rows, step, seed + i + 1)
            found, expected = roomy.update(*new), plain.update(*new)
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b)
    assert torch.equal(roomy.keys, plain.keys)
    assert torch.equal(roomy.values, plain.values)
    assert roomy.get_seq_length() == plain.get_seq_length()
    assert roomy.get_mask_sizes(1) == plain.get_mask_sizes(1)


def test_a_step_is_written_in_place_until_the_room_is_full() -> None:
    """10 places and room for 64: one copy for the 65th step, the next when that room is full."""
    cache = DynamicCache()
    cache.update(*states(2, 10, 0), 0)
    branch(cache, 3, room=500)
    layer = cache.layers[0]
    copies = []
    for step in range(1, 300):
        before = layer.keys.data_ptr()
        layer.update(*states(6, 1, step))
        assert layer.keys.shape == layer.values.shape == (6, 2, 10 + step, 4)
        if layer.keys.data_ptr() != before:
            copies.append(step)
    # 74 places are full before step 65; then 64 more, 138 places before step 129; then half of
    # them, 69, more: 207 before step 198; then 103: 310, not reached
    assert copies == [65, 129, 198]


def test_selection_keeps_the_room() -> None:
    cache = DynamicCache()
    cache.update(*states(2, 10, 0), 0)
    branch(cache, 2, room=30)
    layer = cache.layers[0]
    layer.batch_select_indices(torch.tensor([3, 0]))
    before = layer.keys.data_ptr()
    for step in range(30):
        layer.update(*states(2, 1, step))
    assert layer.keys.data_ptr() == before
    layer.update(*states(2, 1, 99))
    assert layer.keys.data_ptr() != before


def test_branch_leaves_other_kinds_of_layers_to_themselves() -> None:
    """A sliding window keeps its last places only, so it is repeated as it is."""
    cache = DynamicCache()
    sliding = DynamicSlidingWindowLayer(sliding_window=4)
    cache.layers = [DynamicLayer(), sliding, DynamicLayer(), DynamicLayer()]
    keys, values = states(2, 6, 0)
    for i in range(3):
        cache.layers[i].update(keys, values)
    branch(cache, 3, room=8)
    kinds = [type(layer) for layer in cache.layers]
    # the last was never used (some models share keys between layers)
    assert kinds == [RoomyLayer, DynamicSlidingWindowLayer, RoomyLayer, DynamicLayer]
    assert cache.layers[1] is sliding
    assert not cache.layers[3].is_initialized
    twice = keys[[0, 0, 0, 1, 1, 1]]
    assert torch.equal(cache.layers[0].keys, twice)
    assert torch.equal(sliding.keys, twice[:, :, -3:])  # of a window of 4, the next is the fourth
    assert torch.equal(cache.layers[2].values, values[[0, 0, 0, 1, 1, 1]])


@pytest.mark.parametrize("kind", ["Llama", "Gemma3"])
def test_a_cache_in_half_precision_changes_no_number_under_autocast(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention casts keys and values to bf16 anyway; the cache does it once."""
    model, dtypes = language_model(kind), set()
    update = RoomyLayer.update

    def seen(self: RoomyLayer, *args: Any, **kwargs: Any) -> Any:
        out = update(self, *args, **kwargs)
        dtypes.add(out[0].dtype)
        return out

    monkeypatch.setattr(RoomyLayer, "update", seen)

    def run() -> Sequences:
        dtypes.clear()
        return sample(
            model, [[5, 6, 7], [11]], rollouts=4, max_new_tokens=40, eos=[1], pad=0,
            generator=generator(0), autocast=lambda: torch.autocast("cpu", torch.bfloat16),
        )  # fmt: skip

    half = run()
    assert dtypes == {torch.bfloat16}
    monkeypatch.setattr("entrostat.models.kv_cache.autocast_dtype", lambda device: None)
    full = run()
    assert dtypes == {torch.float32}
    assert torch.equal(half.tokens, full.tokens)
    assert torch.equal(half.sampler_logp, full.sampler_logp)


def language_model(kind: str) -> torch.nn.Module:
    """A small random Llama, or a Gemma 3 whose layers alternate between a window and all."""
    import transformers

    shape = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "eos_token_id": 1,
        "pad_token_id": 0, "bos_token_id": 2, "max_position_embeddings": 512,
        "initializer_range": 0.3,
    }  # fmt: skip
    torch.manual_seed(0)
    if kind == "Llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).eval()
    more = {
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16,
        "query_pre_attn_scalar": 8, "tie_word_embeddings": False,
    }  # fmt: skip
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**shape, **more)).eval()


@pytest.mark.parametrize("kind", keep(["Llama", "Gemma3"], "Gemma3"))
def test_shared_prompts_give_what_a_pass_each_gives(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy completions of 140 tokens, longer than two growths of the room, some ending early."""
    model, T = language_model(kind), 140
    prompts = [[5, 6, 7, 8, 9], [11], [12, 13, 14], [20, 21]]
    growths = []
    widen = RoomyLayer.widen

    def counted(self: RoomyLayer, repeats: int, room: int, *dtype: torch.dtype | None) -> None:
        growths.append((self.keys.shape[0], self.keys.shape[2]))
        widen(self, repeats, room, *dtype)

    monkeypatch.setattr(RoomyLayer, "widen", counted)

    def greedy(share: bool, eos: list[int]) -> Sequences:
        return sample(
            model, prompts, rollouts=3, max_new_tokens=T, eos=eos, pad=0, top_p=1e-6,
            generator=generator(0), share=share,
        )  # fmt: skip

    free = greedy(share=False, eos=[])
    assert growths == []
    shared = greedy(share=True, eos=[])
    assert torch.equal(shared.tokens, free.tokens)
    torch.testing.assert_close(shared.sampler_logp, free.sampler_logp, atol=2e-5, rtol=0)
    full = 2 if kind == "Llama" else 1  # layers without a window
    # branched at 5 places into room for 64; full at 69, then 64 more, full at 133
    assert growths == [(4, 5)] * full + [(12, 69)] * full + [(12, 133)] * full
    for row, prompt in enumerate(prompts[:2]):  # and as transformers does
        expected = model.generate(  # type: ignore[operator]
            torch.tensor([prompt]), max_new_tokens=T, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :]  # fmt: skip
        assert shared.completions[3 * row].tolist() == expected.tolist()
    # an eos that some say early: the rows that go on are taken out of the cache
    said = [row.tolist() for row in free.completions[::3]]
    by = {t: [row.index(t) for row in said if t in row] for t in range(2, 40)}
    eos = next(t for t, at in by.items() if len(at) == 2 and min(at) < 100)
    growths.clear()
    short, apart = greedy(share=True, eos=[eos]), greedy(share=False, eos=[eos])
    assert torch.equal(short.tokens, apart.tokens)
    assert torch.equal(short.mask, apart.mask)
    assert sorted(set(short.mask.sum(-1).tolist()))[-1] == T
    assert 0 < int(short.finished.sum()) < 12
    assert {rows for rows, _ in growths} >= {4, 6}  # twelve at first, six at last


@pytest.mark.parametrize("half", [False, True])
def test_decoding_in_full_buffers_gives_what_a_growing_cache_gives(
    half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a CUDA graph runs, without the graph: some rows end early and are taken out."""
    model, kept, grown = language_model("Llama"), [], []
    select, grow = GraphedDecoder.select, GraphedDecoder._grow
    monkeypatch.setattr("entrostat.models.kv_cache._ROOM", 7)

    def counted(self: GraphedDecoder, rows: Tensor) -> None:
        kept.append(len(rows))
        select(self, rows)

    def enlarged(self: GraphedDecoder) -> None:
        grow(self)
        grown.append(self._mask.shape[-1])

    monkeypatch.setattr(GraphedDecoder, "select", counted)
    monkeypatch.setattr(GraphedDecoder, "_grow", enlarged)
    how: dict[str, Any] = (
        {"autocast": lambda: torch.autocast("cpu", torch.bfloat16)} if half else {}
    )

    def greedy(graph: bool) -> Sequences:
        return sample(
            model, [[5, 6, 7, 8, 9], [11], [12, 13, 14], [20, 21]], rollouts=3, max_new_tokens=62,
            eos=[2, 3], pad=0, generator=None, graph=graph, **how,
        )  # fmt: skip

    growing, full = greedy(graph=False), greedy(graph=True)
    assert len({*growing.mask.sum(-1).tolist()}) > 2
    assert kept
    assert kept[0] <= 6  # half of twelve
    # 5 places of the prompt and 7 more, rounded up to 16; doubled when one more is needed, up to
    # 67 in all. The last token sampled is never an input.
    last = 5 + int(full.mask.sum(-1).max()) - 2
    assert grown == [new for old, new in ((16, 32), (32, 64), (64, 72)) if last >= old]
    assert grown
    if not half:  # products of bf16 numbers are added up in another order, and a choice may turn
        assert torch.equal(full.tokens, growing.tokens)
        assert torch.equal(full.finished, growing.finished)
        torch.testing.assert_close(full.sampler_logp, growing.sampler_logp, atol=2e-5, rtol=0)
    else:
        # the first token is the prompt's own pass; the second one's log-prob is a step's
        second = growing.mask[:, 1] & (growing.completions[:, 0] == full.completions[:, 0])
        assert int(second.sum()) >= 6
        torch.testing.assert_close(
            full.sampler_logp[second, 1], growing.sampler_logp[second, 1], atol=2e-2, rtol=0
        )


@pytest.mark.parametrize(("kind", "can"), [("Llama", True), ("Gemma3", False)])
def test_which_models_decode_in_full_buffers(kind: str, can: bool) -> None:
    """A layer that attends in a window keeps no full buffer."""
    policy: Any = SimpleNamespace(
        model=language_model(kind), device=torch.device("cpu"), shares=True, pad=0
    )
    assert can_graph(policy) is can


def test_a_decoder_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    policy: Any = SimpleNamespace(
        model=language_model("Llama"), device=torch.device("cpu"), shares=True, pad=0
    )
    step = GraphedDecoder.__call__
    monkeypatch.setattr(GraphedDecoder, "__call__", lambda *args: 1.01 * step(*args))
    assert can_graph(policy) is False


# ------------------------------------------------------------------------------------------- stops


class Tokens:
    """A byte-level tokenizer with some tokens of several characters."""

    def __init__(self, *longer: str) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        # GPT-2's letters for bytes, by tokenizers itself
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        words = ["<pad>", "<eos>", *letters]
        merges = []
        for word in longer:
            ((spelled, _),) = level.pre_tokenize_str(word)
            for n in range(2, len(spelled) + 1):
                if spelled[:n] not in words:
                    words.append(spelled[:n])
                    merges.append((spelled[: n - 1], spelled[n - 1]))
        inner = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, merges))
        inner.pre_tokenizer = level
        inner.decoder = decoders.ByteLevel()
        inner.add_special_tokens(["<pad>", "<eos>"])
        self.tokenizer: Any = PreTrainedTokenizerFast(
            tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>",
            clean_up_tokenization_spaces=False,
        )  # fmt: skip
        self.level, self.words = level, {w: i for i, w in enumerate(words)}

    def id(self, piece: str | bytes) -> int:
        """Of the token that stands for a text, or for one byte."""
        if piece == "<eos>":
            return 1
        if isinstance(piece, bytes):  # bytes of no character of their own: by GPT-2's table
            from transformers.convert_slow_tokenizer import bytes_to_unicode

            (byte,) = piece
            return self.words[bytes_to_unicode()[byte]]
        ((spelled, _),) = self.level.pre_tokenize_str(piece)
        return self.words[spelled]


class Parrot(torch.nn.Module):
    """Says what it was told: the completion of each prompt, a prompt being one token.

    Its cache holds the tokens that it has seen, as the keys of a real dynamic layer.
    """

    def __init__(self, script: dict[int, list[int]], V: int, broken: bool = False) -> None:
        super().__init__()
        self.script, self.V, self.broken = script, V, broken
        self.nothing = torch.nn.Parameter(torch.zeros(1))

    def forward(
        self, input_ids: Tensor, past_key_values: DynamicCache | None = None, **ignored: Any
    ) -> Any:
        cache = DynamicCache() if past_key_values is None else past_key_values
        new = input_ids[:, None, :, None].float()
        seen, _ = cache.update(new, new, 0)
        logits = torch.full((len(seen), 1, self.V), -torch.inf)
        for row, said in enumerate(seen[:, 0, :, 0].long().tolist()):
            words = self.script[said[0]]
            logits[row, 0, words[min(len(said), len(words)) - 1]] = 0
        if self.broken:
            logits[0] = torch.nan
        return SimpleNamespace(logits=logits, past_key_values=cache)


def parrot(
    script: dict[int, list[int]], T: int = 12, stops: Stops | None = None, share: bool = True,
    V: int = 300, broken: bool = False, rollouts: int = 2,
) -> Sequences:  # fmt: skip
    return sample(
        Parrot(script, V, broken), [[p] for p in script], rollouts=rollouts, max_new_tokens=T,
        eos=[1], pad=0, generator=generator(0), stops=stops, share=share,
    )  # fmt: skip


def policy_of(tokens: Tokens) -> Policy:
    return Policy(None, tokens.tokenizer, torch.device("cpu"), [1], 0, nullcontext, None)


EURO = [b"\xe2", b"\x82", b"\xac"]


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(
    ("said", "stop", "kept", "text"),
    [
        (["x", "abc", "d"], ("b",), 2, "xa"),  # inside a token: all of it belongs to the completion
        (["a\n", "\nb", "c"], ("\n\n",), 2, "a"),  # across two
        (["x", "a", "b", "c", "d"], ("abcd",), 5, "x"),  # across four
        (["+", "x"], ("+",), 1, ""),  # the very first
        (["abc", "x"], ("abc",), 1, ""),
        (["é", *EURO, "x"], ("€",), 4, "é"),  # three bytes, a token each
        (["é", EURO[0], EURO[1], "x"], ("€",), 12, None),  # its beginning is not it
        (["🙂", "x", "é", "y"], ("xé",), 3, "🙂"),
        (["a", "b", "x"], ("zz", "b", "x"), 2, "a"),  # any of several
        (["a", "b", "c", "x"], ("abc", "ab"), 2, ""),  # one that begins another, in any order
        (["a", "b", "c", "x"], ("ab", "abc"), 2, ""),
        (["x", "abc", "x"], ("c", "abc"), 2, "x"),  # both at once: cut at the one that begins first
        (["a", "<eos>", "b"], ("b",), 2, "a"),  # eos comes first
        (["a", "b", "x"], ("xy",), 12, None),  # never
        (["a"] * 11 + ["b"], ("b",), 12, "a" * 11),  # with the last token that is allowed
        ([" ", " a", " b", "x"], (" b",), 3, "  a"),  # spaces count
    ],
)  # fmt: skip
def test_a_completion_ends_with_the_token_that_completes_a_stop(
    said: list[str | bytes], stop: tuple[str, ...], kept: int, text: str | None, share: bool
) -> None:
    """Beside it a completion that goes on to the end, so that a row leaves the others early."""
    tokens = Tokens("abc", "a\n", "\nb", " a", " b", "é", "🙂")
    ids = [tokens.id(piece) for piece in said]
    other = [tokens.id("w")]
    policy = policy_of(tokens)
    found = parrot({2: ids, 3: other}, stops=Stops(stop, policy.texts), share=share, rollouts=2)
    ids += [ids[-1]] * (12 - len(ids))  # a parrot repeats its last word
    ended = text is not None
    for row in (0, 1):
        assert found.completions[row][found.mask[row]].tolist() == ids[:kept]
        assert found.mask[row].tolist() == [True] * kept + [False] * (12 - kept)
        assert (found.completions[row, kept:] == 0).all()
        assert (found.attention[row, 1:] == found.mask[row]).all()
        assert bool(found.finished[row]) is ended
    for row in (2, 3):
        assert found.completions[row].tolist() == other * 12
        assert not found.finished[row]
    if ended:
        assert policy.decode(found, stop)[:2] == [text, text]


def test_text_is_cut_before_the_first_stop() -> None:
    assert cut("one two three", ("three", "two")) == "one "
    assert cut("one two", ("x",)) == "one two"
    assert cut("one", ("one",)) == ""
    assert cut("aab", ("ab", "b")) == "a"
    assert cut("x", ()) == "x"


PIECES = ["a", "b", "ab", "\n", "\n\n", " a", "é", "🙂", "ba", *EURO]


@given(
    said=st.lists(st.sampled_from(PIECES), min_size=1, max_size=60),
    stop=st.lists(
        st.text(alphabet=["a", "b", "\n", " ", "é", "€", "🙂"], min_size=1, max_size=6),
        min_size=1, max_size=3,
    ),
)  # fmt: skip
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_stops_are_found_when_their_bytes_are_complete(
    said: list[str | bytes], stop: list[str]
) -> None:
    """UTF-8 finds its own beginnings: a text holds a string where its bytes hold the string's."""
    tokens = TOKENS
    ids = torch.tensor([[tokens.id(piece) for piece in said]])
    raw = [piece if isinstance(piece, bytes) else piece.encode() for piece in said]
    stops = Stops(tuple(stop), policy_of(tokens).texts)
    for n in range(1, len(said) + 1):
        expected = any(s.encode() in b"".join(raw[:n]) for s in stop)
        assert stops.completed(ids[:, :n]).tolist() == [expected]
        if expected:
            break


TOKENS = Tokens(*(p for p in PIECES if isinstance(p, str) and len(p.encode()) > 1))


def test_each_completion_is_looked_at_by_itself() -> None:
    stops = Stops(("b",), policy_of(TOKENS).texts)
    a, b = TOKENS.id("a"), TOKENS.id("b")
    assert stops.completed(torch.tensor([[a, a], [a, b], [b, a]])).tolist() == [False, True, True]


# stops of a run


def run(output: Path, task: Any = None, **changes: Any) -> Path:
    data = {
        "method": "grpo", "iterations": 1, "output": str(output),
        "eval": {"prompts": 3, "samples": 2}, **changes,
    }  # fmt: skip
    data["sampling"] = {"prompts": 8, "rollouts": 4, **changes.get("sampling", {})}
    return train(from_dict(data), task=task)


def endings(path: Path) -> list[list[str]]:
    """Each rollout's tokens, as it was trained on."""
    dump = es.load_rollouts(path)
    assert len(dump.entropy) == len(dump.tokens) == len(dump.logp)
    return [[dump.pieces[int(t)] for t in dump.tokens[dump.rows(i)]] for i in range(len(dump))]


def test_a_run_with_a_stop(tmp_path: Path) -> None:
    """The tiny policy writes digits joined by +, so + ends nearly all it says after one digit."""
    path = run(tmp_path / "run", sampling={"stop": ["+"]})
    dump, rows = es.load_rollouts(path), endings(path)
    for text, pieces in zip(dump.completions, rows, strict=True):
        assert "+" not in text
        assert "+" not in pieces[:-1]
        assert pieces[-1] in ("+", "<eos>") or len(pieces) == 13
        assert "".join(pieces[:-1]) == text or len(pieces) == 13
    assert sum(pieces[-1] == "+" for pieces in rows) > 25
    # what is written is what was scored: a digit alone is never a sum of three and more
    line = json.loads((path / "metrics.jsonl").read_text())
    assert line["reward/mean"] == 0
    assert line["rollout/truncated"] == sum(p[-1] not in ("+", "<eos>") for p in rows) / 32
    assert "+" not in (path / "answers.jsonl").read_text()  # evaluations end there as well


def test_truncated_are_those_that_neither_a_stop_nor_eos_ended(tmp_path: Path) -> None:
    sampling = {"stop": ["9", "7+"], "max_new_tokens": 6}
    path = run(tmp_path / "run", sampling=sampling, eval={"prompts": 0})
    rows = endings(path)
    ended = [p[-1] in ("9", "<eos>") or p[-2:] == ["7", "+"] for p in rows]
    assert 0 < sum(ended) < 32
    assert all(len(p) == 6 for p, end in zip(rows, ended, strict=True) if not end)
    line = json.loads((path / "metrics.jsonl").read_text())
    assert line["rollout/truncated"] == pytest.approx(1 - sum(ended) / 32)


class Digit(TargetSum):
    """Wants one digit, and says where it ends."""

    stop: Any = ("+",)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def score(self, completion: str, example: Example) -> float:
        self.seen.append(completion)
        return float(completion == "5")


def test_a_task_says_where_its_answers_end_unless_the_run_does(tmp_path: Path) -> None:
    task = Digit()
    path = run(tmp_path / "own", task, eval={"prompts": 0})
    assert task.seen == es.load_rollouts(path).completions
    assert not any("+" in text for text in task.seen)
    assert "stop" not in load(path / "config.toml")["sampling"]  # it is the task's
    off = Digit()
    path = run(tmp_path / "off", off, sampling={"stop": []}, eval={"prompts": 0})
    assert sum("+" in text for text in off.seen) > 25
    assert load(path / "config.toml")["sampling"]["stop"] == []
    other = Digit()
    run(tmp_path / "other", other, sampling={"stop": ["5", "+"]}, eval={"prompts": 0})
    assert not any("5" in text or "+" in text for text in other.seen)


def test_whose_stop_it_is() -> None:
    task, config = Digit(), TrainConfig()
    assert stop_strings(task, config) == ("+",)
    task.stop = ["a", "b"]
    assert stop_strings(task, config) == ("a", "b")
    assert stop_strings(TargetSum(), config) == ()
    config.sampling.stop = ()
    assert stop_strings(task, config) == ()
    config.sampling.stop = ("x",)
    assert stop_strings(task, config) == ("x",)


@pytest.mark.parametrize(
    "bad",
    [
        "+", ("+", ""), (1,), [None],
        5, None,
    ],
)  # fmt: skip
def test_a_task_whose_stop_is_no_strings(bad: Any, tmp_path: Path) -> None:
    task = Digit()
    task.stop = bad
    refused(lambda: run(tmp_path / "run", task), "'target_sum'")
    assert not (tmp_path / "run").exists()


def test_stops_in_a_configuration(tmp_path: Path) -> None:
    for stop in ((), ("\n",), ("\n\n", 'say "é"', "\\", "#")):
        config = from_dict({"sampling": {"stop": list(stop)}})
        assert config.sampling.stop == stop
        (tmp_path / "c.toml").write_text(config.to_toml(), encoding="utf-8")
        again = from_dict(load(tmp_path / "c.toml"))
        assert again == config
        assert again.sampling.stop == stop
    assert from_dict({}).sampling.stop is None
    refused(lambda: from_dict({"sampling": {"stop": ["a", ""]}}), "sampling.stop")
    refused(lambda: from_dict({"sampling": {"stop": "ab"}}), "sampling.stop", "got 'ab'")
    refused(lambda: from_dict({"sampling": {"stop": [1]}}), "sampling.stop", "got 1")


@pytest.mark.parametrize(
    ("words", "stop"),
    [
        (["--sampling.stop", "A", "B"], ("A", "B")),
        (["--sampling.stop", "A", "--seed", "3"], ("A",)),
        (["--sampling.stop"], ()),
        (["--sampling.stop", "None"], None),
        (["--seed", "3"], ("x",)),
    ],
)
def test_stops_as_flags(words: list[str], stop: Any) -> None:
    from entrostat.cli.flags import dataclass_flags

    default = from_dict({"sampling": {"stop": ["x"]}})
    config = dataclass_flags(TrainConfig, copy.deepcopy(default), words, "entrostat train", "")
    assert config.sampling.stop == stop


def test_an_empty_stop_as_a_flag_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    from entrostat.cli import main

    assert main(["train", "--sampling.stop", "", "--output", str(tmp_path / "run")]) == 2
    assert "sampling.stop holds an empty text" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
