"""Worker processes for calls that may hang, crash or be attacked: scorers, graders, model programs.

    with Pool() as pool:
        outcomes = pool.map([Call("json:loads", ('{"a": 1}',)), Call("time:sleep", (1e9,))], 2.0)
        outcomes[0].value     # {"a": 1}
        outcomes[1].failure   # "timed out"

A call names its function as MODULE:FUNCTION. Its arguments are plain data, its result is JSON. If a
worker hangs or dies, only its current call fails: the worker is killed with its process group and
replaced. A server process that has done the imports forks the replacement (`server`).

A worker is limited in time and, on Linux, in memory, but it has the user's rights. Programs that a
model wrote need a sandbox inside the worker.
"""

from .pool import Failure, Outcome, Pool, tried
from .wire import Call

__all__ = ["Call", "Failure", "Outcome", "Pool", "tried"]
