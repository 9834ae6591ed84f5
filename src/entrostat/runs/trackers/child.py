"""A tracker's process: reads one order a line, answers each with one line.

    {"folder": ..., "project": ..., ...}     -> {"imported": ...}, then {"begun": where}
    {"iteration": 3, "figures": {...}}       -> {"done": 3}
    {"alert": in words}                      -> {"done": null}
    {"finish": true}                         -> {"finished": true}

What goes wrong is the last answer: {"failed": in words}. Where orders end without "finish" the run
was killed, and the tracker is told so.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import in_one_line
from .outside import read_seal, write_seal
from .services import SERVICES

_GRACE = 120.0  # seconds that a tracker may take to finish when the run was killed


def main(name: str, answers: int) -> None:
    threading.Thread(target=_outlive, args=(os.getppid(),), daemon=True).start()

    def answer(**said: Any) -> None:
        with suppress(BrokenPipeError):  # the run has gone; what it said is still to be done
            os.write(answers, json.dumps(said).encode() + b"\n")

    try:
        serve(name, answer)
    except BaseException as error:  # SystemExit too, which libraries raise
        import traceback

        traceback.print_exc()  # into the log
        answer(failed=f"raised {in_one_line(error)[:500]}")


def serve(name: str, answer: Any) -> None:
    start = json.loads(sys.stdin.buffer.readline())
    service = SERVICES[name]
    try:
        if service.package:
            importlib.import_module(service.package)
    except BaseException as error:
        answer(failed=f"cannot be imported ({in_one_line(error)[:300]})")
        return
    answer(imported=name)
    folder = Path(start["folder"])
    seal = read_seal(folder, name)
    tracker = service(start, seal["id"])
    seal |= {"id": tracker.id, "place": tracker.place}
    write_seal(folder, name, seal)
    answer(begun=tracker.place)
    ok = False
    for line in sys.stdin.buffer:
        order = json.loads(line)
        if "finish" in order:
            ok = order["finish"]
            break
        if "alert" in order:
            tracker.alert(order["alert"])
            answer(done=None)
            continue
        if order["iteration"] > seal["logged"]:
            # before it is given: where a kill comes between, a tracker lacks one and has none twice
            write_seal(folder, name, seal | {"logged": order["iteration"]})
            seal["logged"] = order["iteration"]
            tracker.log(order["iteration"], order["figures"])
        answer(done=order["iteration"])
    tracker.finish(ok)
    answer(finished=True)


def _outlive(parent: int) -> None:
    """End this process, hanging or not, some time after the one that started it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(_GRACE)
    os._exit(1)
