"""Processes for calls that may hang, die or be attacked: scorers, graders, programs of a model.

A `Pool` keeps a few worker processes and gives each call a hard time limit:

    with Pool() as pool:
        outcomes = pool.map([Call("json:loads", ('{"a": 1}',)), Call("time:sleep", (1e9,))], 2.0)
        outcomes[0].value     # {"a": 1}
        outcomes[1].failure   # "timed out"

A call names its function as MODULE:FUNCTION, its arguments are plain data, its result is what JSON
can say. Outcomes come in the calls' order, one each, whatever happened. A worker that hangs or dies
costs the call it was at: it is killed with its process group and another takes its place, forked in
milliseconds by a server process that has the imports done (`server`).

What a worker may do is bounded in time and memory only: it has the user's rights. To run programs
that a model wrote takes a sandbox inside the worker.

For Linux and macOS; the memory limit holds on Linux.
"""

from .pool import Failure, Outcome, Pool, tried
from .wire import Call

__all__ = ["Call", "Failure", "Outcome", "Pool", "tried"]
