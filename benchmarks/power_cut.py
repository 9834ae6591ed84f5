"""A run and the power: training is killed at random moments, and what was not on the disk is lost.

Every kill is a SIGKILL; then the run directory is made anew as a disk might hold it that keeps no
more than POSIX promises (`survivors`): of a file what it held at its last fsync, and of what came
later nothing, a part, zeros or all; of a directory the names at its last fsync, and each later
change or not. The run is resumed, killed again some of the time, and at its end compared with one
that was left alone: metrics, evaluations, answers, rollouts and weights, those of the best policy
too, bit for bit.

    OMP_NUM_THREADS=1 python benchmarks/power_cut.py --kills 50

Linux; some two seconds per kill on one core.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

SETTINGS: dict[str, Any] = {
    "method": ["grpo", "repo_r"], "iterations": 5, "sampling": {"prompts": 4, "rollouts": 4},
    "eval": {"prompts": 1, "samples": 2, "every": 1}, "save": {"best": "test/prompt_entropy"},
}  # fmt: skip

Tree = dict[int, "bytes | dict[str, int]"]  # inode -> content of a file, or names of a directory


class Cut(BaseException):
    """The power is gone."""


class Disk:
    """Notes what is durable, while it is entered: every fsync of this process is seen.

    Args:
        root: the directory that is watched.
        store: where the notes go; another directory, of the same file system or not.
        cut: raise `Cut` in place of this fsync, counted from 1, having kept what is there.
    """

    def __init__(self, root: Path, store: Path, cut: int | None = None) -> None:
        self.root, self.store, self.cut, self.count = root, store, cut, 0
        self._held: list[int] = []  # an inode that is held is not given to another file
        self._fsync = os.fsync
        self.now: Tree = {}
        store.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def watched(self) -> Iterator[Disk]:
        """While `os.fsync` is ours."""
        try:
            with mock.patch.object(os, "fsync", self.fsync):
                yield self
        finally:
            for held in self._held:
                os.close(held)

    def fsync(self, place: int) -> None:
        """In place of `os.fsync`."""
        self.count += 1
        if self.count == self.cut:
            self.now = scan(self.root)
            raise Cut
        self._fsync(place)
        self._held.append(os.dup(place))
        path, inode = Path(f"/proc/self/fd/{place}").resolve(), os.fstat(place).st_ino
        part = self.store / f"{inode}.part"
        if path.is_dir():
            names = {p.name: p.lstat().st_ino for p in path.iterdir()}
            part.write_text(json.dumps(names))
            part.replace(self.store / f"{inode}.json")
        else:
            shutil.copyfile(path, part)
            part.replace(self.store / f"{inode}.bytes")


def scan(root: Path) -> Tree:
    """What a directory holds now."""
    found: Tree = {}
    for path in (root, *root.rglob("*")):
        inode = path.lstat().st_ino
        if path.is_dir():
            found[inode] = {p.name: p.lstat().st_ino for p in path.iterdir()}
        else:
            found[inode] = path.read_bytes()
    return found


def survivors(now: Tree, store: Path, inode: int, target: Path, chance: random.Random) -> None:
    """Make at `target` what a disk may hold of `inode` after the cut."""
    listing = store / f"{inode}.json"
    later = now.get(inode)
    if isinstance(later, dict) or listing.exists():
        names = json.loads(listing.read_text()) if listing.exists() else {}
        target.mkdir()
        for name, child in _names(names, later if isinstance(later, dict) else names, chance):
            survivors(now, store, child, target / name, chance)
    else:
        content = store / f"{inode}.bytes"
        kept = content.read_bytes() if content.exists() else b""
        target.write_bytes(_content(kept, kept if later is None else later, chance))


def _names(
    before: dict[str, int], later: dict[str, int], chance: random.Random
) -> list[tuple[str, int]]:
    """All changes, none, or each by the toss of a coin."""
    share = chance.choice([0.0, 0.5, 1.0])
    out = []
    for name in sorted(before | later):
        child = (later if chance.random() < share else before).get(name)
        if before.get(name) == later.get(name):
            child = before[name]
        if child is not None:
            out.append((name, child))
    return out


def _content(kept: bytes, later: bytes, chance: random.Random) -> bytes:
    """What was kept, what came later, a part of it, or its length in zeros."""
    if kept == later:
        return kept
    pairs = enumerate(zip(kept, later, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(kept), len(later)))
    shared, tail = later[:same], later[same:]
    part = tail[: chance.randrange(len(tail) + 1)]
    return chance.choice([kept, later, shared + part, shared + bytes(len(tail))])


# ------------------------------------------------------------------------------------- the runs


def child(work: Callable[[], str], log: Path) -> int:
    """Fork; the child writes what `work` returns, or how it failed."""
    process = os.fork()
    if process:
        return process
    try:
        text = work()
    except BaseException:
        text = "error: " + traceback.format_exc()
    log.write_text(text)
    os._exit(0)


def training(run: Path) -> str:
    """Begin, or go on as `train --resume` does: "done", or "refused: " and a line."""
    from entrostat.config import from_dict, load
    from entrostat.errors import RunStopped
    from entrostat.runs.progress import Progress
    from entrostat.trainers.lab import train

    class Passed(Progress):
        over = False

        def fact(self, text: str) -> None:
            self.over |= "going on from checkpoint" in text

    written, progress = run / "config.toml", Passed()
    resume = written.is_file()
    try:
        config = from_dict((load(written) if resume else SETTINGS) | {"output": str(run)})
        train(config, progress=progress, resume=resume)
    except (RunStopped, ValueError) as error:
        return f"{'error' if chr(10) in str(error) else 'refused'}: {error}"
    return "done; a checkpoint passed over" if progress.over else "done"


def difference(a: Path, b: Path) -> str | None:
    """In which file two runs differ; None where they are the same but for the clock."""

    def rows(run: Path, name: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in (run / name).read_text().splitlines()]
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in found]

    logs = ["metrics.jsonl", "evaluation.jsonl", "answers.jsonl"]
    files = ["final/model.safetensors", "best/model.safetensors", "best/entrostat.json"]
    files += sorted({str(p.relative_to(r)) for r in (a, b) for p in r.glob("rollouts/*")})
    for name in logs:
        if rows(a, name) != rows(b, name):
            return name
    different = (f for f in files if (a / f).read_bytes() != (b / f).read_bytes())
    return next(different, None)


def lines(run: Path) -> int:
    """Iterations logged."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else -1


def wait(process: int, event: Callable[[], Any]) -> bool:
    """Until an event, or until the process has ended: then False."""
    while not event():
        if os.waitpid(process, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    return True


def trial(
    folder: Path, seconds: float, chance: random.Random, most: int, cuts: list[str]
) -> tuple[int, str]:
    """Train with up to `most` cuts; returns how many, and how it ended.

    `cuts` takes what each found: how many checkpoints and lines were there, and what survived.
    """
    kills = 0
    while True:
        store, log = folder / f"store{kills}", folder / f"log{kills}"
        disk = Disk(folder / "disk", store)
        (folder / "disk").mkdir(exist_ok=True)
        run = folder / "disk" / "run"

        def work(disk: Disk = disk, run: Path = run, store: Path = store) -> str:
            with disk.watched():
                # what a reboot found is on the disk
                for path in (disk.root, *disk.root.rglob("*")):
                    place = os.open(path, os.O_RDONLY)
                    disk.fsync(place)
                    os.close(place)
                (store / "noted").touch()
                return training(run)

        before, process = lines(run), child(work, log)
        last = kills == most or (kills and chance.random() < 0.5)
        # so many iterations on, and then at a random moment of the next
        goal = before + chance.randrange(SETTINGS["iterations"] - max(0, before) + 1)
        # not before that: what a reboot found would be taken for what was never on the disk
        noted = store / "noted"
        alive = last or wait(process, lambda: noted.exists() and lines(run) >= goal)  # noqa: B023
        limit = time.monotonic() + (3600.0 if last else chance.uniform(0, seconds))
        if alive and wait(process, lambda limit=limit: time.monotonic() > limit):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        if last:
            return kills, log.read_text()
        kills += 1
        now = scan(disk.root)
        inode = disk.root.stat().st_ino
        shutil.rmtree(folder / "after", ignore_errors=True)
        survivors(now, store, inode, folder / "after", chance)
        shutil.rmtree(disk.root)
        os.replace(folder / "after", disk.root)
        there = sorted(p.stem for p in run.glob("checkpoints/*.json"))
        cuts.append(f"checkpoints {','.join(there) or 'none'}, final {(run / 'final').exists()}")


def main() -> None:
    """Run the trials and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=3, help="kills of one run")
    args = parser.parse_args()
    import entrostat.trainers.lab.loop  # noqa: F401 - loaded once, for all children

    chance = random.Random(args.seed)
    ends: collections.Counter[str] = collections.Counter()
    kills, cuts = 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = child(lambda: training(folder / "whole"), folder / "log")
        wait(process, lambda: lines(folder / "whole") >= 1)
        began = time.monotonic()
        wait(process, lambda: lines(folder / "whole") >= SETTINGS["iterations"])
        seconds = (time.monotonic() - began) / (SETTINGS["iterations"] - 1)
        wait(process, lambda: False)
        print(
            f"left alone: {(folder / 'log').read_text()}, {seconds:.2f} s per iteration", flush=True
        )
        while kills < args.kills:
            here = folder / f"{kills}"
            here.mkdir()
            found, text = trial(here, seconds, chance, args.most, cuts)
            kills += found
            end = text
            if text.startswith("done"):
                where = difference(folder / "whole", here / "disk" / "run")
                end = (
                    "exact" + text.removeprefix("done") if where is None else f"DIFFERS in {where}"
                )
            elif text.startswith("refused"):
                end = "refused"
            ends[end.split(":")[0]] += 1
            print(f"{kills} cuts: {end.split(':')[0]}", flush=True)
            if not end.startswith("exact"):
                print(text, flush=True)
            shutil.rmtree(here)
    print(f"{kills} cuts of {ends.total()} runs: {dict(ends)}")
    with_any = sum("checkpoints none" not in cut for cut in cuts)
    final = sum("final True" in cut for cut in cuts)
    print(f"{with_any} cuts left a checkpoint, {final} a final model")
    sys.exit(any(not end.startswith(("exact", "refused")) for end in ends))


if __name__ == "__main__":
    main()
