"""Attention of packed rows, wide rows, windows and matrix units, against plain mathematics.

Bounds for bf16 follow from its unit roundoff u = 2^-8 (8 binary digits, to nearest): what is
rounded once is off by at most u of itself.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import entrostat as es
from builders import refused
from entrostat.config import TrainConfig
from entrostat.core.stats import tiled
from entrostat.core.stats.tiled import has_amx, matrix_units
from entrostat.models import packing
from entrostat.models.attention import NAME, _Rows, grouped, row_attention
from entrostat.models.capabilities import window
from entrostat.models.head import only_at
from entrostat.models.loading import load_policy
from entrostat.models.packing import _next_fit, pack
from entrostat.models.policy import Policy
from entrostat.models.pretrain import tokenizer
from entrostat.models.rollout import Sequences

U = 2**-8
_attend = grouped(NAME, _Rows.apply)
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 15,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "eos_token_id": 1,
    "pad_token_id": 0, "bos_token_id": 1, "max_position_embeddings": 512,
    "initializer_range": 0.2,
}  # fmt: skip


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ----------------------------------------------------------------------------------- rows by hand


def trees(rows: int, places: int, g: torch.Generator) -> Tensor:
    """Masks [R, 1, S, S] such as packing makes: prompts, each with completions, then padding."""
    mask = torch.zeros(rows, 1, places, places, dtype=torch.bool)
    for row in range(rows):
        at = 0
        while at < places:
            begin = at  # of a prompt
            prompt = int(torch.randint(1, 4, (), generator=g))
            for place in range(begin, min(begin + prompt, places)):
                mask[row, 0, place, begin : place + 1] = True
            at = min(begin + prompt, places)
            for _ in range(int(torch.randint(0, 4, (), generator=g))):
                first = at  # of a completion, which sees the prompt and itself
                at = min(first + int(torch.randint(1, 5, (), generator=g)), places)
                for place in range(first, at):
                    mask[row, 0, place, begin : begin + prompt] = True
                    mask[row, 0, place, first : place + 1] = True
    assert mask.any(-1).all()
    return mask


def case(
    rows: int, heads: tuple[int, int], places: int, size: int, seed: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[list[Tensor], Tensor, Tensor]:  # fmt: skip
    """Query, key and value, the mask, and a gradient of the output [R, H, S, D]."""
    g, (J, G) = generator(seed), heads
    shapes = [(rows, J * G, places, size), *[(rows, J, places, size)] * 2]
    q, k, v = (torch.randn(shape, generator=g).to(dtype) for shape in shapes)
    return [q, k, v], trees(rows, places, g), torch.randn(shapes[0], generator=g).to(dtype)


def attended(x: list[Tensor], mask: Tensor, d: Tensor, scaling: float) -> list[Tensor]:
    """By the code under test: the output [R, H, S, D], gradients of q, k, v."""
    q, k, v = (t.clone().requires_grad_() for t in x)
    out, none = _attend(None, q, k, v, mask, scaling)
    assert none is None
    assert out.is_contiguous()
    out.backward(d.transpose(1, 2))
    assert q.grad is not None
    assert k.grad is not None
    assert v.grad is not None
    return [out.detach().transpose(1, 2), q.grad, k.grad, v.grad]


def exact(x: list[Tensor], mask: Tensor, d: Tensor, scaling: float) -> list[Tensor]:
    """The same by torch's own formula in float64, every head with a copy of its keys."""
    q, k, v = (t.double().requires_grad_() for t in x)
    G = q.shape[1] // k.shape[1]
    with sdpa_kernel(SDPBackend.MATH):
        out = scaled_dot_product_attention(
            q, k.repeat_interleave(G, 1), v.repeat_interleave(G, 1), attn_mask=mask, scale=scaling
        )
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), d.double())]


@given(
    rows=st.integers(1, 3),
    heads=st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2), (3, 2)]),
    places=st.integers(1, 24),
    size=st.sampled_from([1, 4, 8]),
    scaling=st.sampled_from([0.125, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_rows_are_torch_s_attention(
    rows: int, heads: tuple[int, int], places: int, size: int, scaling: float, seed: int
) -> None:
    x, mask, d = case(rows, heads, places, size, seed)
    found, expected = attended(x, mask, d, scaling), exact(x, mask, d, scaling)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-5, rtol=1e-5)


def test_rows_of_a_float64_model_have_float32_accuracy() -> None:
    x, mask, d = case(2, (2, 2), 16, 8, 1, torch.float64)
    for a, b in zip(attended(x, mask, d, 0.3), exact(x, mask, d, 0.3), strict=True):
        assert a.dtype == torch.float64
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_two_places_by_hand() -> None:
    """One head of size 1: the second place sees two keys, ln 3 apart, so weights 1/4 and 3/4."""
    q = torch.tensor([[[[5.0], [1.0]]]])
    k = torch.tensor([[[[1.0], [3.0]]]]).log()
    v = torch.tensor([[[[8.0], [4.0]]]])
    mask = torch.ones(1, 1, 2, 2, dtype=torch.bool).tril()
    found = attended([q, k, v], mask, torch.tensor([[[[1.0], [1.0]]]]), 1.0)
    # the first sees itself alone: 8; the second 8 / 4 + 4 * 3 / 4 = 5
    assert found[0].flatten().tolist() == pytest.approx([8, 5])
    # d out / d score 1 = p0 p1 (v1 - v0) = 3/16 * -4 = -.75; times k1 - k0 = ln 3 for q
    assert found[1].flatten().tolist() == pytest.approx([0, -0.75 * 1.0986123])
    assert found[2].flatten().tolist() == pytest.approx([0.75, -0.75])
    assert found[3].flatten().tolist() == pytest.approx([1.25, 0.75])


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_differences(seed: int) -> None:
    """Central differences along random directions, float32: off by h^2 and rounding / h."""
    x, mask, d = case(2, (2, 2), 12, 4, seed)
    gradients = attended(x, mask, d, 0.5)[1:]
    h = 1e-2
    for which in range(3):
        way = torch.randn(x[which].shape, generator=generator(seed + 50))
        ends = []
        for sign in (1, -1):
            moved = list(x)
            moved[which] = x[which] + sign * h * way
            out = _attend(None, *moved, mask, 0.5)[0].transpose(1, 2)
            ends.append(float((out.double() * d).sum()))
        slope = float((gradients[which].double() * way).sum())
        assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(slope, rel=3e-3, abs=5e-3)


@pytest.mark.parametrize("units", [True, False], ids=["as the machine is", "without matrix units"])
@pytest.mark.parametrize("seed", range(3))
def test_bf16_is_off_by_its_roundings(
    seed: int, units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probabilities, their gradients and results are rounded to bf16; inputs are bf16 already.

    out = sum p v:   p, then the sum: u (sum p |v| + |out|)
    ds = p (dp - sum p dp) / scale: p twice, the sum of p dp, then ds for its products.
    """
    if not units:
        monkeypatch.setattr(tiled, "has_amx", lambda: False)
    x, mask, d = case(2, (2, 2), 40, 16, seed, torch.bfloat16)
    scaling = 0.25
    found, expected = attended(x, mask, d, scaling), exact(x, mask, d, scaling)
    q, k, v = (t.double() for t in x)
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    w = d.double()
    p = (scaling * q @ k.mT).masked_fill(~mask, -torch.inf).softmax(-1)
    dp = w @ v.mT
    mean = (p * dp).sum(-1, keepdim=True)
    ds = scaling * p * (dp - mean)
    wrong = U * (2 * ds.abs() + scaling * p * (p * dp.abs()).sum(-1, keepdim=True))
    grouped = {
        "out": U * (p @ v.abs() + expected[0].abs()),
        "q": wrong @ k.abs() + U * expected[1].abs(),
        "k": (wrong.mT @ q.abs()).unflatten(1, (2, 2)).sum(2) + U * expected[2].abs(),
        "v": (2 * U * p.mT @ w.abs()).unflatten(1, (2, 2)).sum(2) + U * expected[3].abs(),
    }
    for (name, bound), a, b in zip(grouped.items(), found, expected, strict=True):
        assert a.dtype == torch.bfloat16
        # 1.05 for products of two roundings, 1e-5 for float32's own
        assert ((a.double() - b).abs() <= 1.05 * bound + 1e-5).all(), name
        assert (a.double() - b).abs().max() > 0  # it is bf16


def test_what_the_rows_do_not_know_is_refused() -> None:
    x, mask, _ = case(1, (1, 1), 4, 4, 0)
    refused(lambda: _attend(None, *x, mask, softcap=30.0), "no softcap")
    torch.testing.assert_close(  # 1 / sqrt(D) where a model names no scaling
        _attend(None, *x, mask)[0], _attend(None, *x, mask, 0.5)[0]
    )


# ---------------------------------------------------------------------------- rows within a model


def batch(seed: int, prompts: int, rollouts: int, P: int, T: int, V: int = 15) -> Sequences:
    """Random sequences, prompts of 1..P tokens and completions of 0..T, in mixed order."""
    g = generator(seed)
    width = torch.randint(1, P + 1, (prompts,), generator=g)
    ids = torch.randint(2, V, (prompts, P), generator=g)
    of = torch.arange(prompts).repeat_interleave(rollouts)
    of = of[torch.randperm(len(of), generator=g)]
    length = torch.randint(0, T + 1, (len(of),), generator=g)
    length[0], width[of[0]] = T, P
    mask = torch.arange(T) < length[:, None]
    before = torch.arange(P) >= P - width[of][:, None]
    attention = torch.cat([before, mask], 1).long()
    tokens = torch.cat([ids[of], torch.randint(2, V, (len(of), T), generator=g)], 1) * attention
    return Sequences(
        tokens, attention, P, mask, torch.zeros(mask.shape), length < T, of
    )  # fmt: skip


def saved(path: Path, kind: str, **more: Any) -> Path:
    """A small random model of some architecture."""
    import transformers

    torch.manual_seed(0)
    name = {"Gemma3": "Gemma3TextConfig"}.get(kind, f"{kind}Config")
    config = getattr(transformers, name)(**{**SMALL, **more})
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {kind: saved(place / kind, kind) for kind in ("Llama", "Qwen2")}


def gradients_of(policy: Policy, sequences: Sequences) -> dict[str, Tensor]:
    """Of log-probs and entropies together, and the statistics themselves."""
    policy.model.zero_grad()
    stats = policy.token_stats(sequences, 1.0)
    (stats.logp.sum() + stats.entropy.square().sum()).backward()
    found = {name: p.grad.clone() for name, p in policy.trained().items() if p.grad is not None}
    policy.model.zero_grad()
    return found | {"logp": stats.logp.detach(), "entropy": stats.entropy.detach()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-4) -> None:
    assert a.keys() == b.keys()
    for name, x in a.items():
        scale = b[name].abs().max()
        assert scale > 0, name
        torch.testing.assert_close(x / scale, b[name] / scale, atol=tolerance, rtol=0, msg=name)


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
@pytest.mark.parametrize("with_logits", [True, False])
def test_packed_rows_give_what_padding_gives(
    models: dict[str, Path], kind: str, with_logits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_logits:
        monkeypatch.setattr("entrostat.models.capabilities.SMALLEST_VOCABULARY", 1)
    policy = load_policy(TrainConfig(model=str(models[kind])))
    assert policy.packs
    assert not policy.rows  # too small for it to pay
    assert (policy.head is None) is with_logits
    sequences = batch(1, 5, 4, 12, 30)
    fused = gradients_of(policy, sequences)
    policy.rows = True
    plain = gradients_of(policy, sequences)
    policy.packs = False
    padded = gradients_of(policy, sequences)
    assert_same(plain, padded)
    assert_same(fused, padded)
    assert policy.model.config._attn_implementation == "sdpa"


def test_a_larger_model_attends_by_rows_by_itself(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entrostat.models.capabilities.SMALL", 1000)
    assert load_policy(TrainConfig(model=str(models["Llama"]))).rows


def test_rows_of_a_model_with_a_soft_cap_are_left_to_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain products know none: seen when the model is tried."""
    monkeypatch.setattr("entrostat.models.capabilities.SMALL", 1000)
    monkeypatch.setattr("entrostat.models.capabilities.can_pack", lambda policy: True)
    path = saved(tmp_path, "Gemma2", query_pre_attn_scalar=8, attn_logit_softcapping=20.0)
    assert not load_policy(TrainConfig(model=str(path))).rows


def test_rows_in_half_precision(models: dict[str, Path]) -> None:
    """Fused and plain attention round differently; both stay near float32."""
    path = str(models["Llama"])
    exact_policy = load_policy(TrainConfig(model=path))
    policy = load_policy(TrainConfig(model=path, precision="bf16"))
    sequences = batch(2, 5, 4, 12, 30)
    policy.rows = True
    stats = policy.token_stats(sequences, 1.0)
    expected = exact_policy.token_stats(sequences, 1.0)
    # logits of some 2 are off by some roundings of 2^-8; one place alone by a few times more
    difference = (stats.logp - expected.logp)[sequences.mask].abs()
    assert 1e-4 < difference.mean() < 0.02
    assert difference.max() < 0.15


def test_rows_in_half_precision_multiply_by_matrix_units(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from entrostat.models import attention

    asked = []

    def spy(x: Tensor) -> Any:
        asked.append(x.dtype)
        return matrix_units(x)

    monkeypatch.setattr(attention, "matrix_units", spy)
    policy = load_policy(TrainConfig(model=str(models["Llama"]), precision="bf16"))
    policy.rows = True
    policy.token_stats(batch(3, 2, 2, 5, 5), 1.0).logp.sum().backward()
    assert set(asked) == {torch.bfloat16}


@pytest.mark.parametrize(
    "large",
    [
        False,
        True,
    ],
)
def test_gradient_checkpointing_changes_no_gradient(
    models: dict[str, Path], large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model large enough for plain products as well: layers are computed twice."""
    path = str(models["Llama"])
    plain = load_policy(TrainConfig(model=path))
    if large:
        monkeypatch.setattr("entrostat.models.capabilities.SMALL", 1000)
    policy = load_policy(TrainConfig(model=path, gradient_checkpointing=True))
    sequences = batch(4, 3, 3, 8, 12)
    assert_same(gradients_of(policy, sequences), gradients_of(plain, sequences))


def test_row_attention_ends_also_after_an_exception(models: dict[str, Path]) -> None:
    model = load_policy(TrainConfig(model=str(models["Llama"]))).model
    with row_attention(model):
        assert model.config._attn_implementation == NAME
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(KeyError), row_attention(model):
        raise KeyError
    assert model.config._attn_implementation == "sdpa"


def test_rows_take_any_group_size() -> None:
    """H = J G: one key-value head for all, or one each."""
    for J, G in itertools.product((1, 2, 4), repeat=2):
        x, mask, d = case(1, (J, G), 6, 4, 7)
        grouped = x[0].reshape(1, J, G * 6, 4)
        out = _Rows.apply(grouped, x[1], x[2], mask, 0.5).view(1, J * G, 6, 4)
        torch.testing.assert_close(out.double(), exact(x, mask, d, 0.5)[0], atol=1e-5, rtol=0)


# -------------------------------------------------------------------------------------- wide rows


def test_wide_rows_give_the_statistics_of_narrow_ones(models: dict[str, Path]) -> None:
    policy = load_policy(TrainConfig(model=str(models["Llama"])))
    widths = set()
    shapes = [(3, 4, 20, 40), (8, 6, 30, 60), (12, 4, 8, 50), (2, 30, 60, 20), (16, 2, 90, 9)]
    for seed, shape in enumerate(shapes):
        sequences = batch(seed, *shape)
        logits = []
        for wide in (False, True):
            packed = pack(sequences, wide)
            with torch.no_grad(), only_at(policy.model, packed.source):
                logits.append(policy._run_packed(packed).logits.log_softmax(-1))
        assert packed.tokens.shape[1] >= int(sequences.attention.sum(-1).max()) - 1
        widths.add(packed.tokens.shape[1])
        torch.testing.assert_close(logits[0], logits[1], atol=2e-5, rtol=0)
        with torch.no_grad():
            padded = policy.padded(sequences).log_softmax(-1)
        torch.testing.assert_close(logits[1], padded, atol=2e-5, rtol=0)
    assert len(widths) >= 3
    assert widths != {96}


@given(
    prompts=st.integers(1, 20),
    rollouts=st.integers(1, 12),
    P=st.integers(1, 130),
    T=st.integers(1, 150),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_the_rows_counted_are_those_that_packing_makes(
    prompts: int, rollouts: int, P: int, T: int, seed: int
) -> None:
    """For every width that could be chosen; the one chosen costs least."""
    sequences = batch(seed, prompts, rollouts, P, T)
    width = sequences.attention[:, :P].sum(-1)
    places = (sequences.mask.sum(-1) - 1).clamp(min=0)
    parts = [
        (int(sequences.prompt[i]), int(width[i]), int(places[i]))
        for i in torch.argsort(sequences.prompt, stable=True)
    ]
    longest = int((width + places).max())
    cost = {}
    with pytest.MonkeyPatch.context() as patch:
        for size in sorted({max(size, longest) for size in packing._WIDE}):
            patch.setattr(packing, "_ROW", size)  # narrow rows of another width
            rows, made = pack(sequences).tokens.shape
            assert made == size
            assert rows == _next_fit(parts, size)[1]
            cost[size] = rows * size * (1 + size / 3000)
    rows, size = pack(sequences, wide=True).tokens.shape
    assert size in cost
    assert cost[size] == min(cost.values())
    assert rows == _next_fit(parts, size)[1]


def test_the_cheapest_row_by_hand() -> None:
    """Three prompts of 40 tokens, a completion each that takes 20 places.

    96 places hold one, 128 two, 192 all three: 3 x 96 x 1.032 = 297.2, 2 x 128 x 1.0427 = 266.9,
    192 x 1.064 = 204.3, and wider rows hold no more.
    """
    mask = torch.ones(3, 21, dtype=torch.bool)
    tokens = torch.full((3, 61), 2)
    sequences = Sequences(
        tokens, torch.ones_like(tokens), 40, mask, torch.zeros(3, 21),
        torch.ones(3, dtype=torch.bool), torch.arange(3),
    )  # fmt: skip
    assert pack(sequences).tokens.shape == (3, 96)
    assert pack(sequences, wide=True).tokens.shape == (1, 192)


# ---------------------------------------------------------------------------------------- windows


@pytest.mark.parametrize(
    ("kind", "more", "size"),
    [
        ("Mistral", {"sliding_window": 12}, 12),
        (
            "Gemma3",
            {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"],
             "query_pre_attn_scalar": 8},
            12,
        ),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 0}, 12),
        ("Qwen2", {"use_sliding_window": False, "sliding_window": 12}, None),
        # a window that no layer uses
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 2}, None),
        ("Mistral", {"sliding_window": None}, None),
        ("Llama", {}, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", [False, True])
def test_sequences_within_a_window_are_packed_and_longer_ones_padded(
    tmp_path: Path, kind: str, more: dict, size: int | None, rows: bool
) -> None:
    """Either way they are what a pass without neighbours or padding gives."""
    policy = load_policy(TrainConfig(model=str(saved(tmp_path, kind, **more))))
    assert policy.packs
    assert policy.window == window(policy) == size
    policy.rows = rows
    packed = []
    run = policy._run_packed
    policy._run_packed = lambda p: packed.append(p) or run(p)  # type: ignore[method-assign]
    # at most 12, 13 and 26 tokens
    within, just, across = batch(5, 4, 3, 5, 7), batch(7, 4, 3, 5, 8), batch(6, 4, 3, 6, 20)
    for sequences, is_packed in ((within, True), (just, size is None), (across, size is None)):
        assert policy.packs_all(sequences) is is_packed
        packed.clear()
        with torch.no_grad():
            stats = policy.token_stats(sequences, 1.0)
        assert bool(packed) is is_packed
        for row in range(len(sequences.tokens)):
            n = int(sequences.mask[row].sum())
            if n == 0:
                continue
            ids = sequences.tokens[row][sequences.attention[row].bool()]
            with torch.no_grad():
                logits = policy.model(ids[None]).logits[0, -n - 1 : -1]
            expected = logits.log_softmax(-1).gather(1, ids[-n:, None])[:, 0]
            torch.testing.assert_close(stats.logp[row, :n], expected, atol=3e-5, rtol=0)


# ----------------------------------------------------------------------------------- matrix units


def setting() -> str:
    return torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]


def test_matrix_units_leave_the_setting_as_it_was() -> None:
    before = setting()
    half = torch.zeros(1, dtype=torch.bfloat16)
    with matrix_units(half):
        assert setting() == ("bf16" if has_amx() else before)
    assert setting() == before
    with pytest.raises(KeyError), matrix_units(half):
        raise KeyError
    assert setting() == before
    for dtype in (torch.float32, torch.float64, torch.float16):
        with matrix_units(torch.zeros(1, dtype=dtype)):
            assert setting() == before


def test_matrix_units_without_the_processor_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "has_amx", lambda: False)
    before = setting()
    with matrix_units(torch.zeros(1, dtype=torch.bfloat16)):
        assert setting() == before


def test_statistics_leave_the_setting_as_it_was_also_when_they_fail() -> None:
    before = setting()
    hidden = torch.randn(3, 8, generator=generator(0)).bfloat16().requires_grad_()
    weight = torch.randn(50, 8, generator=generator(1))
    targets = torch.tensor([1, 2, 3])
    es.token_stats(hidden, weight, targets, implementation="tiled").logp.sum().backward()
    assert setting() == before
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        tiled.TiledStats.apply(hidden, weight[:, :5], targets, None, None, False, (4, 6), False)
    assert setting() == before


def exact_stats(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    lp = (hidden.double() @ weight.double().T).log_softmax(-1)
    entropy = -(lp.exp() * lp).sum(-1)
    return lp.gather(1, targets[:, None])[:, 0], entropy, lp


def test_float32_hidden_states_stay_exact() -> None:
    """bf16 products would be off by 2^-8 of a logit of 6."""
    g = generator(2)
    hidden, weight = torch.randn(40, 32, generator=g), torch.randn(3000, 32, generator=g)
    targets = torch.randint(3000, (40,), generator=g)
    stats = es.token_stats(hidden, weight, targets, implementation="tiled", tile=(16, 500))
    logp, entropy, _ = exact_stats(hidden, weight, targets)
    torch.testing.assert_close(stats.logp.double(), logp, atol=2e-5, rtol=0)
    torch.testing.assert_close(stats.entropy.double(), entropy, atol=2e-5, rtol=0)


@pytest.mark.parametrize("units", [True, False], ids=["as the machine is", "without matrix units"])
@pytest.mark.parametrize("half_weight", [True, False])
def test_statistics_of_bf16_hidden_states_are_within_bf16_s_rounding(
    units: bool, half_weight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden states are bf16 already; the weight is rounded where matrix units multiply.

    A logit is off by e <= u sum |h| |w|, log p by twice the largest e of its row, and the entropy
    by sum p |log p + H| e to first order.
    """
    if not units:
        monkeypatch.setattr(tiled, "has_amx", lambda: False)
    g = generator(3)
    hidden = torch.randn(40, 32, generator=g).bfloat16()
    weight = 0.4 * torch.randn(3000, 32, generator=g)
    if half_weight:
        weight = weight.bfloat16()
    targets = torch.randint(3000, (40,), generator=g)
    hidden.requires_grad_()
    weight.requires_grad_()
    stats = es.token_stats(hidden, weight, targets, implementation="tiled", tile=(16, 500))
    logp, entropy, lp = exact_stats(hidden.detach(), weight.detach(), targets)
    rounded = not half_weight and units and has_amx()
    off = (hidden.detach().double().abs() @ weight.detach().double().abs().T) * (U * rounded)
    difference = (stats.logp.double() - logp).abs()
    assert (difference <= 2 * off.amax(-1) + 2e-5).all()
    slope = lp.exp() * (lp + entropy[:, None]).abs()
    assert ((stats.entropy.double() - entropy).abs() <= 1.1 * (slope * off).sum(-1) + 2e-5).all()
    if rounded:
        assert difference.max() > 1e-4  # the units were used
    # gradients of mean log p and entropy, of results that are bf16 themselves where inputs are
    (stats.logp.sum() + stats.entropy.sum()).backward()
    h, w = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    a, b, _ = exact_stats(h, w, targets)
    (a.sum() + b.sum()).backward()
    for found, expected in ((hidden.grad, h.grad), (weight.grad, w.grad)):
        assert found is not None
        assert expected is not None
        # entries are sums of products of rounded factors: a few roundings of the largest
        assert (found.double() - expected).abs().max() < 4 * U * expected.abs().max()
