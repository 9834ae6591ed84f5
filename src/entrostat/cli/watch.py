"""`entrostat watch`: the page of runs that go on, in a browser."""

from __future__ import annotations

import math

from .._text import say
from .flags import SOURCE, options, source_of, whole

WATCH = """\
usage: entrostat watch PATH [PATH...] [--port N] [--every SECONDS] [--open]
                       [--host ADDRESS] [--token] [--format FORMAT]
                       [--step NAME] [--entropy NAME] [--score NAME]

Serve the page that `entrostat report` writes while the runs go on; it follows
them by itself. A path is a run's directory or a log, ours or another trainer's
(TRL's output directory, veRL's saved console), or a directory in which runs
appear, which are then compared. It need not be there yet. Nothing is written,
and Ctrl-C ends the page, not the runs.

Examples:
  entrostat watch runs/grpo
  entrostat watch runs --every 30
  entrostat watch outputs --port 0 --open
  ssh -L 8642:localhost:8642 MACHINE    # then open http://localhost:8642/ here

  --port   default 8642; 0 takes any that is free
  --every  seconds between two pages, at least; default 5
  --open   open it in a browser on this machine
  --host   address to listen on; default 127.0.0.1, which this machine alone
           can reach. Any other wants a token, which stands in the address that
           is printed
  --token  want it on 127.0.0.1 too, where others have accounts on this machine
  --format, --step, --entropy, --score
           as `entrostat report` takes them
"""


def watch_verb(args: list[str]) -> int:
    """Serve the live page until Ctrl-C."""
    known = ("port", "every", "host", *SOURCE)
    given, args = options(args, "entrostat watch", known, ("open", "token"))
    if not args:
        raise ValueError("watch needs the path of a run, or of a directory of runs; see --help")
    port, seconds = whole(given["port"], "port", 0, 65535), _seconds(given["every"])
    from ..report.live.server import Server, is_loopback, resolve
    from ..report.live.watcher import Watched, Watcher, as_paths

    where, opens, token = given["host"] or "127.0.0.1", given["open"], given["token"]
    if opens and (token or not is_loopback(resolve(where)[1])):
        raise ValueError(
            "--open would put the token into the browser's command line, where others on this "
            "machine can read it; leave it out, and open the address that is printed"
        )
    watched = Watched(as_paths(args), *source_of(given))
    watcher = Watcher(watched, seconds)
    server = Server(watcher, where, 8642 if port is None else port, token)
    try:
        say(f"watching {', '.join(args)}: {server.address}")
        say("Ctrl-C ends the page; the runs go on")
        watcher.start()
        if opens:
            import webbrowser

            webbrowser.open(server.address)
        server.serve_forever()
    except KeyboardInterrupt:
        say()
    finally:
        server.server_close()
        watcher.close()
    return 0


def _seconds(word: str | None) -> float:
    try:
        value = 5.0 if word is None else float(word)
    except ValueError:
        value = math.nan
    if not 0.1 <= value <= 86_400:
        raise ValueError(f"--every must be seconds, from 0.1 to 86400, got {word!r}")
    return value
