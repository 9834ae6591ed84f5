"""`entrostat watch`: the page of runs that go on, in a browser."""

from __future__ import annotations

from .._text import say
from .flags import number, options, source_of

WATCH = """\
usage: entrostat watch PATH [PATH...] [OPTIONS]

Serve the page of `entrostat report` while runs go on; it updates by itself. A
path is a run's directory, a log of any trainer, or a directory in which runs
appear, which are compared. It need not exist yet. Nothing is written, and
Ctrl-C ends the page, not the runs.

Examples:
  entrostat watch runs/grpo
  entrostat watch runs --every 30
  entrostat watch outputs --port 0 --open
  ssh -L 8642:localhost:8642 MACHINE    # then open http://localhost:8642/ here

  --port N         default 8642; 0 takes any that is free
  --every SECONDS  between two pages, at least; default 5
  --open           open it in a browser on this machine
  --host ADDRESS   to listen on; default 127.0.0.1, this machine alone. Another
                   needs a token, which is part of the address that is printed
  --token          require it on 127.0.0.1 too, if others have accounts here
  --format FORMAT, --step NAME, --entropy NAME, --score NAME
                   as `entrostat report` takes them
"""


def watch_verb(args: list[str]) -> int:
    given, args = options(args, WATCH, "the path of a run, or of a directory of runs")
    port = number(given["port"] or "8642", "port", 0, 65535)
    seconds = number(given["every"] or "5", "every", 0.1, 86_400, float)
    from ..report.live.server import Server, is_loopback, resolve
    from ..report.live.watcher import Watched, Watcher, as_paths

    where, opens, token = given["host"] or "127.0.0.1", given["open"], given["token"]
    if opens and (token or not is_loopback(resolve(where)[1])):
        raise ValueError(
            "--open would put the token into the browser's command line, where others on this "
            "machine can read it; leave it out, and open the address that is printed"
        )
    watcher = Watcher(Watched(as_paths(args), *source_of(given)), seconds)
    server = Server(watcher, where, port, token)
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
