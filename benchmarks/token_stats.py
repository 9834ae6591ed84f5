"""Token statistics beside TRL's, veRL's, Liger's and full logits: accuracy, time, memory.

Sections (`--only` takes a comma-separated list; default: all; a GPU's are in gpu/):

accuracy   Entropy, log-prob and their gradients against float64 at V = 151,936: peaked rows with
           1 - p_max from 1e-1 to 1e-12, flat, all about -1e4, and tied. Hidden states are the
           identity matrix and the head is the logits transposed, so that the matrix product is
           exact and every contender gets the same float32 logits; the head's gradient is then the
           logits' gradient. Each kind has four rows: two draws, each with the largest logit and a
           random token as target; the table shows the worst. A gradient's error is the norm of
           the difference over the norm of the float64 gradient, row by row.
speed      CPU, float32, forward and backward, N = 1024, V = 32,768, D = 256 and 1024. Rounds are
           interleaved in shuffled order; ratios are to four bare matrix products (what forward,
           recomputation and two gradients need) of the same round. veRL lives in an environment
           of its own (`--verl-python`): there the products run beside it, and its ratio is to
           those. Memory is taken in a fresh process each, see `peak`.
memory     Peak memory of ours as N and V grow, D = 64: N + V, not N V.
threshold  The plain form against the tiled one over V, N and D, and which PLAIN_LOGITS loses least.
tiles      Time of tile sizes, N = 1024, V = 32,768.

A contender that does not import is skipped, with a line. Liger's Python package imports only where
triton is installed; on CPU it then runs torch code of veRL's formulas.

Examples:
    python benchmarks/token_stats.py --rounds 20
    python benchmarks/token_stats.py --only accuracy --json accuracy.json
    python benchmarks/token_stats.py --only speed --verl-python .venv-verl/bin/python
    python benchmarks/token_stats.py --only memory --tokens 1024,4096,16384,65536
    python benchmarks/token_stats.py --shrink 32 --rounds 2        # a quick look: does it work?
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# this file also runs in veRL's environment, where neither entrostat nor TRL is: imports are late

SECTIONS = ("accuracy", "speed", "memory", "threshold", "tiles")
LEVELS = [10.0**-k for k in range(1, 13)]
TRL_CHUNK = 32768  # what TRL itself calls it with

Stats = Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]]
Step = Callable[[], object]


# --- contenders: (hidden [N, D], weight [V, D], targets [N]) -> log-prob [N], entropy [N], ...


def ours(implementation: Any = "auto", moments: bool = False, **settings: Any) -> Stats:
    """entrostat's."""
    from entrostat.core.stats import token_stats

    def stats(hidden: Tensor, weight: Tensor, targets: Tensor) -> Sequence[Tensor]:
        found = token_stats(
            hidden, weight, targets, moments=moments, implementation=implementation, **settings
        )
        both = [found.logp, found.entropy]
        if found.sum_p2 is None or found.sum_p2_logp is None:
            return both
        return [*both, found.sum_p2, found.sum_p2_logp]

    return stats


def trl() -> Stats:
    """TRL's: tiles of 4096 x 32,768; Triton on CUDA, torch elsewhere."""
    function = importlib.import_module("trl.kernels.chunked_logprob").ChunkedLogProbFunction

    def stats(hidden: Tensor, weight: Tensor, targets: Tensor) -> Sequence[Tensor]:
        return function.apply(
            hidden, weight, None, targets, 1.0, TRL_CHUNK, None, 1.0, ("entropy",)
        )[:2]

    return stats


def verl() -> Stats:
    """veRL's torch version: chunks of 512 tokens over the whole vocabulary."""
    return importlib.import_module("verl.utils.experimental.torch_functional").FusedLinearForPPO()


def verl_triton() -> Stats:
    """veRL's Triton kernels, for CUDA only."""
    module = importlib.import_module("verl.utils.kernel.linear_cross_entropy")
    importlib.import_module("verl.utils.kernel.kernels")  # where Triton is needed
    return lambda hidden, weight, targets: module.linear_cross_entropy(
        hidden, weight, targets, 1.0, "none"
    )


def liger() -> Stats:
    """Liger's fused linear scaled cross-entropy, which also returns entropy."""
    function = importlib.import_module(
        "liger_kernel.ops"
    ).LigerFusedLinearScaledCrossEntropyFunction

    def stats(hidden: Tensor, weight: Tensor, targets: Tensor) -> Sequence[Tensor]:
        nll, entropy = function.apply(hidden, weight, targets, 1.0, -100, 1, True)
        return -nll, entropy

    return stats


def full_logits() -> Stats:
    """What one writes first: log_softmax of all logits, entropy as -sum p log p."""

    def stats(hidden: Tensor, weight: Tensor, targets: Tensor) -> Sequence[Tensor]:
        log_p = (hidden @ weight.t()).float().log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        return log_p.gather(-1, targets[:, None])[:, 0], entropy

    return stats


CONTENDERS: dict[str, Callable[[], Stats]] = {
    "entrostat": ours,
    "entrostat, tiled": lambda: ours("tiled"),
    "entrostat, plain": lambda: ours("plain"),
    "entrostat, Triton": lambda: ours("triton"),
    "entrostat + moments": lambda: ours(moments=True),
    "entrostat + moments, with their gradient": lambda: ours(moments=True),
    "TRL": trl,
    "veRL": verl,
    "veRL, Triton": verl_triton,
    "Liger": liger,
    "full logits": full_logits,
}
PRODUCTS = ("matrix products", "matrix products, fresh outputs")
_said: set[str] = set()


def load(names: Iterable[str]) -> dict[str, Stats]:
    """The contenders that import here; says which do not."""
    found = {}
    for name in names:
        try:
            found[name] = CONTENDERS[name]()
        except (ImportError, RuntimeError) as error:
            line = f"{name} skipped: {type(error).__name__}: {error}"
            if line not in _said:
                say(line)
                _said.add(line)
    return found


def make_inputs(
    N: int, D: int, V: int, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """hidden [N, D], weight [V, D], targets [N], incoming gradients [4, N]; logits are N(0, 2)."""
    g = torch.Generator(device).manual_seed(0)
    hidden = torch.randn(N, D, generator=g, device=device, dtype=dtype)
    weight = torch.randn(V, D, generator=g, device=device, dtype=dtype).mul_((2 / D) ** 0.5)
    targets = torch.randint(V, (N,), generator=g, device=device)
    incoming = torch.randn(4, N, generator=g, device=device)
    return hidden.requires_grad_(), weight.requires_grad_(), targets, incoming


def make_step(name: str, stats: Stats | None, inputs: tuple[Tensor, ...], backward: bool) -> Step:
    """One call of a contender: forward, or forward and backward into hidden and weight."""
    hidden, weight, targets, incoming = inputs
    if name in PRODUCTS:
        return products(hidden, weight, backward, fresh=name == PRODUCTS[1])
    assert stats is not None
    with_gradient = 4 if name.endswith("their gradient") else 2

    def step() -> object:
        if not backward:
            with torch.no_grad():
                return stats(hidden, weight, targets)
        found = stats(hidden, weight, targets)[:with_gradient]
        gradients = [g.to(x.dtype) for g, x in zip(incoming, found, strict=False)]
        return torch.autograd.grad(found, (hidden, weight), gradients)

    return step


def products(hidden: Tensor, weight: Tensor, backward: bool, fresh: bool) -> Step:
    """The bare matrix products: one forward; recomputation and two gradients backward."""
    h, w = hidden.detach(), weight.detach()
    if fresh:

        def step() -> object:
            z = h @ w.t()
            if not backward:
                return z
            del z
            z = h @ w.t()
            return z @ w, z.t() @ h

        return step
    z = h.new_zeros(len(h), len(w))
    dh, dw = torch.zeros_like(h), torch.zeros_like(w)

    def step() -> object:
        torch.mm(h, w.t(), out=z)
        if backward:
            torch.mm(h, w.t(), out=z)
            torch.mm(z, w, out=dh)
            torch.mm(z.t(), h, out=dw)
        return None

    return step


# --- measuring


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def seconds(step: Step, repeat: int = 1) -> float:
    """Seconds of one call, the mean of `repeat`."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeat):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeat


def interleave(
    steps: dict[str, Step], rounds: int, repeat: dict[str, int] | None = None
) -> dict[str, list[float]]:
    """Seconds of each step, once a round, in shuffled order, after a call to warm up."""
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    shuffle = random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            times[name].append(seconds(steps[name], (repeat or {}).get(name, 1)))
    return times


def child(python: str, kind: str, threads: int, **payload: Any) -> dict[str, Any]:
    """What `kind` of measurement returns, from a fresh process of `python`."""
    command = [python, str(Path(__file__).resolve()), "--child", kind, "--threads", f"{threads}"]
    command += ["--payload", json.dumps(payload)]
    # memory of a process is told best where freed blocks go back at once
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    environment = os.environ | (settings if kind == "memory" else {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def resident(key: str) -> float:
    """MB of this process, now ("VmRSS") or at its peak ("VmHWM").

    Linux's own file and not getrusage where it exists: a child's ru_maxrss starts at its parent's
    size.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    line = next(line for line in status.splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024 / 1e6


def peak(contender: str, N: int, D: int, V: int, backward: bool) -> dict[str, float]:
    """Peak resident memory of one call in this fresh process, MB (1e6 bytes).

    Every library is loaded and warmed on a small case first. Then the inputs and, where gradients
    are asked for, buffers of the returned gradients' size are written to: what the process holds
    then is "held". The buffers are freed, the recorded peak is reset where Linux allows, and the
    call runs; "beyond" is its peak less "held".
    """
    stats = CONTENDERS[contender]() if contender not in PRODUCTS else None
    make_step(contender, stats, make_inputs(64, D, 4096), backward)()
    inputs = make_inputs(N, D, V)
    buffers = [torch.ones_like(x) for x in inputs[:2]] if backward else []
    held = resident("VmRSS")
    assert all(len(x) for x in buffers)
    del buffers
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        say("peak not reset: what loading the libraries took is in it")
    step = make_step(contender, stats, inputs, backward)
    took = seconds(step)
    top = resident("VmHWM")
    given = sum(x.numel() for x in inputs[:2]) * 4e-6 * (2 if backward else 1)
    return {"beyond": top - held, "held": held, "peak": top, "given": given, "seconds": took}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table; the first column is text, the others are right-aligned."""
    cells = [[str(x) for x in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]
    for row in (cells[0], rule, *cells[1:]):
        first = row[0].ljust(widths[0])
        rest = [x.rjust(w) for x, w in zip(row[1:], widths[1:], strict=True)]
        print("| " + " | ".join([first, *rest]) + " |")
    print(flush=True)


# --- accuracy


def rows_of_logits(V: int) -> tuple[list[str], Tensor, Tensor]:
    """Kinds of the rows, float32 logits [R, V] and targets [R]; four rows of each kind."""
    rng = np.random.default_rng(0)
    kinds: list[str] = []
    rows: list[np.ndarray] = []
    targets: list[int] = []

    def add(kind: str, make: Callable[[], np.ndarray]) -> None:
        for _ in range(2):
            z = make().astype(np.float32)
            for target in (int(z.argmax()), int(rng.integers(V))):
                kinds.append(kind)
                rows.append(z)
                targets.append(target)

    def peaked(left: float, at: float = 0.0, ties: int = 1) -> np.ndarray:
        """`ties` equal largest logits, all others together of probability `left`."""
        z = rng.normal(0, 2, V)
        where = rng.choice(V, ties, replace=False)
        z[where] = -np.inf
        z[where] = np.log(np.exp(z).sum()) + math.log1p(-left) - math.log(left) - math.log(ties)
        return z + at

    for left in LEVELS:
        add(f"peaked, 1 - p_max = {left:.0e}", lambda left=left: peaked(left))
    add("flat: N(0, 1)", lambda: rng.normal(0, 1, V))
    add("about -1e4, flat", lambda: -1e4 + rng.normal(0, 1, V))
    add("about -1e4, 1 - p_max = 1e-06", lambda: peaked(1e-6, at=-1e4))
    add("two tied, the others 1e-06", lambda: peaked(1e-6, ties=2))
    add("all tied", lambda: np.full(V, 3.0))
    return kinds, torch.from_numpy(np.stack(rows)), torch.tensor(targets)


def exact(logits: np.ndarray, target: int) -> dict[str, Any]:
    """Float64 statistics of one row of logits [V], in the form that does not cancel."""
    z = logits.astype(np.float64)
    top = int(z.argmax())
    z = z - z[top]
    e = np.exp(z)
    e[top] = 0
    rest = e.sum()
    n, L, slope = 1 + rest, np.log1p(rest), (z * e).sum()
    e[top] = 1
    d_logp = -e / n
    # 1 - p, as the sum of all the others
    d_logp[target] = rest / n if target == top else 1 - e[target] / n
    d_entropy = -e / n * (z - slope / n)
    return {"logp": z[target] - L, "entropy": L - slope / n, "d_logp": d_logp,
            "d_entropy": d_entropy}  # fmt: skip


def evaluate(stats: Stats, logits: Tensor, targets: Tensor) -> dict[str, np.ndarray]:
    """A contender's statistics [R] and logits' gradients [R, V] for logits [R, V]."""
    weight = logits.t().contiguous().requires_grad_()  # [V, R]
    hidden = torch.eye(len(logits), device=logits.device).requires_grad_()
    logp, entropy = stats(hidden, weight, targets)[:2]
    found = {"logp": logp, "entropy": entropy}
    for name, value in (("d_logp", logp), ("d_entropy", entropy)):
        (gradient,) = torch.autograd.grad(value.sum(), weight, retain_graph=True)
        found[name] = gradient.t()
    return {name: x.detach().cpu().numpy() for name, x in found.items()}


MEASURES = {
    "entropy": "Entropy, relative error",
    "logp": "Log-prob, absolute error",
    "d_logp": "Gradient of the log-prob, relative error",
    "d_entropy": "Gradient of the entropy, relative error",
}


def errors(found: dict[str, np.ndarray], logits: Tensor, targets: Tensor) -> dict[str, list[float]]:
    """Error of each measure and row."""
    out: dict[str, list[float]] = {name: [] for name in MEASURES}
    for i, (row, target) in enumerate(zip(logits.numpy(), targets.tolist(), strict=True)):
        truth = exact(row, target)
        out["logp"].append(abs(found["logp"][i] - truth["logp"]))
        out["entropy"].append(abs(found["entropy"][i] - truth["entropy"]) / truth["entropy"])
        for name in ("d_logp", "d_entropy"):
            size = np.linalg.norm(truth[name])
            difference = np.linalg.norm(found[name][i] - truth[name])
            # of a row all tied the entropy has no gradient: nothing to be relative to
            out[name].append(float(difference / size) if size else float(difference))
    return {name: [float(x) for x in values] for name, values in out.items()}


def accuracy(args: argparse.Namespace, device: str = "cpu") -> dict[str, Any]:
    """The tables of errors."""
    V = max(64, 151936 // args.shrink)
    kinds, logits, targets = rows_of_logits(V)
    result: dict[str, dict[str, list[float]]] = {}
    names = ["entrostat, tiled", "entrostat, plain"]
    names += ["entrostat, Triton", "veRL, Triton"] if device != "cpu" else []
    names += ["TRL", "Liger", "full logits"]
    names += ["veRL"] if device != "cpu" or not args.verl_python else []
    for name, stats in load(names).items():
        try:
            found = evaluate(stats, logits.to(device), targets.to(device))
        except Exception as error:  # a peer's kernel may not run on this device
            say(f"{name}, {device}: {type(error).__name__}: {error}")
            continue
        result[name] = errors(found, logits, targets)
    if device == "cpu" and args.verl_python:
        with tempfile.TemporaryDirectory() as folder:
            given, out = Path(folder) / "given.npz", Path(folder) / "out.npz"
            np.savez(given, logits=logits.numpy(), targets=targets.numpy())
            answer = child(args.verl_python, "accuracy", args.threads, contender="veRL",
                           given=str(given), out=str(out))  # fmt: skip
            if "error" in answer:
                say(f"veRL skipped: {answer['error']}")
            else:
                with np.load(out, allow_pickle=False) as file:
                    result["veRL"] = errors(dict(file), logits, targets)
    for measure, title in MEASURES.items():
        print(f"{title}, float32 against float64, V = {V}, {device}:\n")
        rows = []
        for kind in dict.fromkeys(kinds):
            here = [i for i, k in enumerate(kinds) if k == kind]
            # not max(): it may pass over a nan
            worst = [np.max([result[name][measure][i] for i in here]) for name in result]
            note = " (absolute: it is 0)" if (kind, measure) == ("all tied", "d_entropy") else ""
            rows.append([kind + note, *(f"{x:.1e}" for x in worst)])
        table(["", *result], rows)
    return {"V": V, "kinds": kinds, "errors": result}


# --- speed


def speed_child(contender: str, N: int, D: int, V: int, rounds: int) -> dict[str, Any]:
    """A contender and the bare products interleaved, in this process."""
    inputs = make_inputs(N, D, V)
    stats = {contender: CONTENDERS[contender]()}
    steps = {
        name: make_step(name, stats.get(name), inputs, True) for name in (contender, *PRODUCTS)
    }
    return interleave(steps, rounds)


def speed(args: argparse.Namespace) -> dict[str, Any]:
    """Time and memory on CPU."""
    N, V = max(64, 1024 // args.shrink), max(64, 32768 // args.shrink)
    result: dict[str, Any] = {}
    for D in (256, 1024):
        names = ["entrostat", "entrostat + moments", "entrostat + moments, with their gradient",
                 "TRL", "Liger", "full logits"]  # fmt: skip
        if not args.verl_python:
            names.append("veRL")
        contenders = load(names)
        inputs = make_inputs(N, D, V)
        steps = {
            name: make_step(name, contenders.get(name), inputs, True)
            for name in (*contenders, *PRODUCTS)
        }
        times = interleave(steps, args.rounds)
        beside = dict.fromkeys(times, times[PRODUCTS[0]])
        note = ""
        if args.verl_python:
            answer = child(args.verl_python, "speed", args.threads, contender="veRL", N=N, D=D,
                           V=V, rounds=args.rounds)  # fmt: skip
            if "error" in answer:
                say(f"veRL skipped: {answer['error']}")
            else:
                times["veRL"], beside["veRL"] = answer["veRL"], answer[PRODUCTS[0]]
                own, here = (
                    1e3 * statistics.median(x) for x in (beside["veRL"], times[PRODUCTS[0]])
                )
                note = f"\nThe products beside veRL took {own:.0f} ms (here {here:.0f})."
        del steps, inputs
        memory = {}
        for name in times:
            python = args.verl_python if name == "veRL" and args.verl_python else sys.executable
            memory[name] = child(python, "memory", args.threads, contender=name, N=N, D=D, V=V,
                                 backward=True)  # fmt: skip
        print(
            f"Forward and backward, CPU, float32, N = {N}, D = {D}, V = {V}, {args.threads} "
            f"threads, {args.rounds} rounds. Ratio to four products with outputs given.{note}\n"
        )
        rows, out = [], {}
        for name in sorted(times, key=lambda name: statistics.median(times[name])):
            one = summary(times[name], beside[name])
            one["peak_mb"] = memory[name].get("beyond", math.nan)
            if "error" in memory[name]:
                say(f"memory of {name}: {memory[name]['error']}")
            out[name] = one
            rows.append([name, f"{one['median_ms']:.0f}", f"{one['min_ms']:.0f}",
                         f"{one['ratio']:.2f}", f"{one['of_minima']:.2f}",
                         f"{one['peak_mb']:.0f}"])  # fmt: skip
        table(["", "median ms", "min ms", "ratio", "of minima", "peak MB"], rows)
        for name in ("entrostat + moments", "entrostat + moments, with their gradient"):
            share = statistics.median(
                a / b - 1 for a, b in zip(times[name], times["entrostat"], strict=True)
            )
            least = min(times[name]) / min(times["entrostat"]) - 1
            print(f"{name}: {100 * share:+.1f}% (of minima {100 * least:+.1f}%)")
        print()
        result[f"D={D}"] = out
    print("Peak MB: beyond inputs and returned gradients, a fresh process each; "
          "of the products with outputs given, the [N, V] output is in it.\n")  # fmt: skip
    return result


def summary(times: list[float], beside: list[float]) -> dict[str, float]:
    """Median and minimum in ms; median ratio to `beside` round by round, and of minima."""
    return {
        "median_ms": 1e3 * statistics.median(times),
        "min_ms": 1e3 * min(times),
        "ratio": statistics.median(a / b for a, b in zip(times, beside, strict=True)),
        "of_minima": min(times) / min(beside),
    }


# --- memory


def memory(args: argparse.Namespace) -> dict[str, Any]:
    """Peaks over N and V."""
    D, V = 64, max(64, 151936 // args.shrink)
    cases = [(max(16, N // args.shrink), V) for N in args.tokens]
    cases += [(cases[0][0], V // 4), (cases[0][0], V * 2)]
    rows, result = [], []
    for N, columns in cases:
        both = [
            child(sys.executable, "memory", args.threads, contender="entrostat, tiled", N=N, D=D,
                  V=columns, backward=backward)
            for backward in (False, True)
        ]  # fmt: skip
        result.append({"N": N, "V": columns, "forward": both[0], "backward": both[1]})
        failed = [one["error"] for one in both if "error" in one]
        if failed:
            say(f"N = {N}, V = {columns}: {failed[0]}")
            continue
        rows.append([
            f"{N:,}", f"{columns:,}", f"{N * columns * 4e-6:,.0f}", f"{both[0]['beyond']:.0f}",
            f"{both[1]['beyond']:.0f}", f"{both[1]['given']:.0f}", f"{both[1]['peak']:.0f}",
            f"{both[0]['seconds']:.1f}", f"{both[1]['seconds']:.1f}",
        ])  # fmt: skip
    print(f"Peak memory in MB, entrostat tiled, CPU, float32, D = {D}; beyond inputs and returned "
          "gradients, and of the whole process with its libraries:\n")  # fmt: skip
    table(["N", "V", "logits would be", "forward", "forward + backward", "inputs + gradients",
           "whole process", "s forward", "s both"], rows)  # fmt: skip
    return {"D": D, "cases": result}


# --- threshold and tiles


def repeats(step: Step, target: float = 0.02) -> int:
    """Calls that together take `target` seconds."""
    step()
    return max(1, min(1000, round(target / max(1e-6, seconds(step)))))


def threshold(args: argparse.Namespace) -> dict[str, Any]:
    """Plain against tiled, and the threshold between them that loses least."""
    plain, tiled = ours("plain"), ours("tiled")
    cells = []
    for V in (16, 256, 1024, 4096, 32768):
        for N in (64, 1024, 8192):
            for D in (64, 512):
                if args.most_logits // args.shrink < N * V:
                    continue
                inputs = make_inputs(N, D, V)
                steps = {"plain": make_step("plain", plain, inputs, True),
                         "tiled": make_step("tiled", tiled, inputs, True)}  # fmt: skip
                times = interleave(steps, args.rounds, {k: repeats(s) for k, s in steps.items()})
                ratio = summary(times["tiled"], times["plain"])["ratio"]
                cell = {k: 1e3 * statistics.median(t) for k, t in times.items()}
                cells.append(cell | {"N": N, "V": V, "D": D, "logits": N * V, "ratio": ratio})
    cells.sort(key=lambda cell: (cell["logits"], cell["V"], cell["D"]))
    print(f"Plain against tiled, forward and backward, CPU, float32, {args.threads} threads, "
          f"medians of {args.rounds} rounds:\n")  # fmt: skip
    rows = [
        [f"2^{math.log2(c['logits']):.0f}", c["N"], c["V"], c["D"], f"{c['plain']:.3f}",
         f"{c['tiled']:.3f}", f"{c['ratio']:.2f}"]
        for c in cells
    ]  # fmt: skip
    table(["logits", "N", "V", "D", "plain ms", "tiled ms", "tiled / plain"], rows)
    # what a threshold costs beside always choosing the faster, geometric mean over the cells
    costs = {}
    for power in range(8, 29):
        lost = [
            max(0.0, -math.log(c["ratio"])) if c["logits"] <= 2**power
            else max(0.0, math.log(c["ratio"]))
            for c in cells
        ]  # fmt: skip
        costs[power] = math.exp(statistics.mean(lost))
    print("PLAIN_LOGITS, time over always choosing the faster of the two (geometric mean):\n")
    table(["", *(f"2^{p}" for p in costs)], [["", *(f"{x:.3f}" for x in costs.values())]])
    return {"cells": cells, "costs": {f"2^{p}": x for p, x in costs.items()}}


def tiles(args: argparse.Namespace) -> dict[str, Any]:
    """Time of tile sizes."""
    N, V = max(64, 1024 // args.shrink), max(64, 32768 // args.shrink)
    result: dict[str, Any] = {}
    for D in (256, 1024):
        inputs = make_inputs(N, D, V)
        steps = {
            f"{rows} x {columns}": make_step(
                "tiled", ours("tiled", tile=(rows, columns)), inputs, True
            )
            for rows in (256, 512, 1024)
            for columns in (1024, 2048, 4096, 8192)
        }
        steps[PRODUCTS[0]] = make_step(PRODUCTS[0], None, inputs, True)
        times = interleave(steps, args.rounds)
        print(f"Tiles (tokens x columns), forward and backward, N = {N}, D = {D}, V = {V}:\n")
        out = {name: summary(t, times[PRODUCTS[0]]) for name, t in times.items()}
        table(["", "median ms", "min ms", "ratio", "of minima"],
              [[name, f"{x['median_ms']:.0f}", f"{x['min_ms']:.0f}", f"{x['ratio']:.2f}",
                f"{x['of_minima']:.2f}"] for name, x in out.items()])  # fmt: skip
        result[f"D={D}"] = out
    return result


# --- command line


def about(args: argparse.Namespace) -> dict[str, str]:
    """Command, versions, machine."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        info = []
    names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    versions = []
    for name in ("entrostat", "torch", "trl", "liger-kernel", "triton", "numpy"):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{name} none")
    if args.verl_python:
        other = child(args.verl_python, "versions", args.threads)
        versions.append("beside: " + other.get("versions", other.get("error", "")))
    return {
        "versions": ", ".join(versions),
        "python": platform.python_version(),
        "processor": f"{names[0] if names else platform.machine()}, {os.cpu_count()} seen",
        "load at start": f"{os.getloadavg()[0]:.2f}",
        "threads": f"{args.threads}",
    }


def serve(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    """One measurement for another process."""
    if kind == "memory":
        return peak(**payload)
    if kind == "speed":
        return speed_child(**payload)
    if kind == "accuracy":
        stats = CONTENDERS[payload["contender"]]()
        with np.load(payload["given"], allow_pickle=False) as file:
            logits, targets = (torch.from_numpy(file[name]) for name in ("logits", "targets"))
        found = evaluate(stats, logits, targets)
        np.savez(payload["out"], logp=found["logp"], entropy=found["entropy"],
                 d_logp=found["d_logp"], d_entropy=found["d_entropy"])  # fmt: skip
        return {}
    return {"versions": ", ".join(f"{n} {metadata.version(n)}" for n in ("verl", "torch"))}


def main() -> None:
    """Run the sections and print their tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", default="", metavar="SECTIONS", help=f"of {','.join(SECTIONS)}")
    add("--rounds", type=int, default=10)
    add("--threads", type=int, default=2)
    add("--json", type=Path, metavar="FILE", help="also write all figures there")
    add("--verl-python", default="", metavar="PYTHON",
        help="interpreter that has veRL, as .venv-verl/bin/python")  # fmt: skip
    add("--tokens", default="1024,4096,16384", metavar="N,N,...",
        help="of section memory; 65536 takes minutes (default 1024,4096,16384)")  # fmt: skip
    add("--most-logits", type=int, default=2**26,
        help="largest N V in threshold; plain holds several of it (default 2^26)")  # fmt: skip
    add("--shrink", type=int, default=1, metavar="K",
        help="divide N and V by K, for a quick look; the figures then mean little")  # fmt: skip
    add("--child", default="", help=argparse.SUPPRESS)
    add("--payload", default="{}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if min(args.rounds, args.threads, args.shrink) < 1:
        parser.error("--rounds, --threads and --shrink must be at least 1")
    torch.set_num_threads(args.threads)
    if args.child:
        print(json.dumps(serve(args.child, json.loads(args.payload))))
        return
    sections = [name for name in args.only.split(",") if name]
    if unknown := [name for name in sections if name not in SECTIONS]:
        parser.error(f"--only {unknown[0]}: the sections are {', '.join(SECTIONS)}")
    if not sections:
        sections = list(SECTIONS)
    try:
        args.tokens = [int(n) for n in args.tokens.split(",")]
    except ValueError:
        parser.error(f"--tokens {args.tokens}: numbers and commas, as 1024,4096")
    if args.verl_python and not Path(args.verl_python).exists():
        say(f"veRL skipped: --verl-python {args.verl_python} does not exist")
        args.verl_python = ""
    facts = about(args)
    print(*(f"{key}: {value}" for key, value in facts.items()), "", sep="\n")
    result: dict[str, Any] = {"about": facts}
    run = {"accuracy": accuracy, "speed": speed, "memory": memory, "threshold": threshold,
           "tiles": tiles}  # fmt: skip
    for name in sections:
        say(f"{name} ...")
        print(f"## {name}\n")
        result[name] = run[name](args)
        if args.json:  # after each section: the later ones may take long
            args.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
