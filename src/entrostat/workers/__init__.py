"""Processes for calls that may hang, die or be attacked: scorers, graders, programs of a model.

    with Pool() as pool:
        outcomes = pool.map([Call("json:loads", ('{"a": 1}',)), Call("time:sleep", (1e9,))], 2.0)
        outcomes[0].value     # {"a": 1}
        outcomes[1].failure   # "timed out"

A call names its function as MODULE:FUNCTION, its arguments are plain data, its result is what JSON
can say. A worker that hangs or dies costs the call it was at: it is killed with its process group
and another takes its place, forked by a server process that has the imports done (`server`).

A worker is bounded in time and, on Linux, in memory: it has the user's rights. To run programs that
a model wrote takes a sandbox inside the worker.
"""

from .pool import Failure, Outcome, Pool, tried
from .wire import Call

__all__ = ["Call", "Failure", "Outcome", "Pool", "tried"]
