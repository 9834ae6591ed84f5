"""A module that a tracker's process imports in place of the real one: keeps what it is given.

ENTROSTAT_FAKE says how it behaves: nothing, or "raise", "hang", "exit", "print" at iteration 2, or
"import", "init". What it is told goes to the file that ENTROSTAT_FAKE_LOG names.
"""

import json
import os
import sys
import time

MODE = os.environ.get("ENTROSTAT_FAKE", "")
if MODE == "import":
    raise ImportError("its library is broken")


def note(*what):
    with open(os.environ["ENTROSTAT_FAKE_LOG"], "a") as file:
        file.write(json.dumps(what) + "\n")


class Run:
    def log(self, figures, step):
        if step == 2 and MODE == "raise":
            raise OSError("the disk of\nthe server is full")
        if step == 2 and MODE == "hang":
            note("pid", os.getpid())
            time.sleep(600)
        if step == 2 and MODE == "exit":
            sys.exit(3)
        if MODE == "print":
            print("\x1b[2Jhello" * 10_000, flush=True)
        note("log", step, figures)

    def finish(self):
        note("finish")


def alert(title, text):
    note("alert", title, text)


def init(project, name, config, resume, embed):
    if MODE == "init":
        raise RuntimeError("no such server")
    note("init", project, name, resume, config["iterations"])
    return Run()
