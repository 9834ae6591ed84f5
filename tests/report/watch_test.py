"""The live page's server: what it reads and when, whom it answers, what it lets nobody reach."""

from __future__ import annotations

import gzip
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from builders import refused
from entrostat.cli import main
from entrostat.logs.importers.places import runs_in
from entrostat.report import write_run_report
from entrostat.report.live import server as serving
from entrostat.report.live.server import Gate, Server, gate_of, is_loopback, name_of, resolve
from entrostat.report.live.watcher import Watched, Watcher, newest, read_watched, stamps
from paths import TESTS
from watching import checkpoint, log, served, until

pytestmark = [
    pytest.mark.usefixtures("unrendered"),
    pytest.mark.allow_hosts(["127.0.0.1"]),
]
VERL = TESTS / "importers/verl/console.log"
EVIL = "<img src=x onerror=alert(1)>\u202e"


def quick(reading, title, live):
    """A page that takes no time to draw."""
    return f"{reading.words} {live.version}"


# --- what is looked at


def test_a_file_that_cannot_be_looked_at_has_no_stamp(tmp_path, monkeypatch):
    for name in ("open.jsonl", "shut.jsonl"):
        (tmp_path / name).write_text("{}\n")
    look = os.stat

    def stat(path, *args, **more):
        if os.fspath(path) == str(tmp_path / "shut.jsonl"):
            raise PermissionError(13, "Permission denied", path)
        return look(path, *args, **more)

    monkeypatch.setattr(os, "stat", stat)
    assert [Path(name).name for name, *_ in stamps([tmp_path])] == ["open.jsonl"]


def test_stamps_change_with_what_a_page_shows(tmp_path):
    run = tmp_path / "run"
    assert stamps([run]) == ()
    assert newest(()) is None
    log(run, 1, 1)
    seen = stamps([run])
    assert [(Path(name).name, size) for name, size, _ in seen] == [
        ("metrics.jsonl", (run / "metrics.jsonl").stat().st_size)
    ]
    os.utime(run / "metrics.jsonl", (5, 7))
    assert newest(stamps([run])) == 7.0
    for name in ("report.html", "final/model.safetensors", ".hidden.part", "optimizer.bin"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("x")
    assert len(stamps([run])) == 1
    for name in ("rollouts/000001.safetensors", "checkpoint-1/trainer_state.json"):
        before = stamps([run])
        (run / name).parent.mkdir()
        (run / name).write_text("x")
        assert len(stamps([run])) == len(before) + 1
    before = stamps([run])
    log(run, 2, 2)
    assert stamps([run]) != before
    assert len(stamps([run / "metrics.jsonl", tmp_path / "none"])) == 1


def test_stamps_of_a_study_are_of_its_runs_which_are_links(tmp_path):
    study, kept = tmp_path / "study", tmp_path / "study/.store/1"
    kept.mkdir(parents=True)
    log(kept, 1, 1)
    (study / "study.json").write_text("{}")
    (study / "run").symlink_to(kept)
    before = stamps([study])
    log(kept, 2, 2)
    assert stamps([study]) != before


def test_where_runs_lie(tmp_path):
    assert runs_in(tmp_path) == [tmp_path]
    log(tmp_path / "b", 1, 1)
    checkpoint(tmp_path / "a", 1)
    (tmp_path / "notes").mkdir()
    assert runs_in(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    assert runs_in(tmp_path / "a") == [tmp_path / "a"]  # with a checkpoint under it
    assert runs_in(tmp_path / "b") == [tmp_path / "b"]


def test_what_is_read(tmp_path):
    refused(lambda: read_watched(Watched((tmp_path,))), "holds nothing that can be read")
    log(tmp_path / "a", 1, 3)
    alone, among = read_watched(Watched((tmp_path / "a",))), read_watched(Watched((tmp_path,)))
    assert (alone.alone, alone.words) == (True, "iteration 3")
    assert (among.alone, among.words) == (False, "iteration 3")
    checkpoint(tmp_path / "b", 2)
    (tmp_path / "c").mkdir()
    (tmp_path / "c/metrics.jsonl").write_text('{"iteration"')
    reading = read_watched(Watched((tmp_path,)))
    assert [run.source for run in reading.runs] == ["entrostat", "TRL"]
    assert reading.words == "2 runs, iteration 2 to 3"
    (left_out,) = reading.left_out
    assert "no whole line" in left_out
    assert read_watched(Watched((tmp_path / "b",))).words == "iteration 2 of 50"


# --- the thread


def test_a_page_waits_follows_and_survives(tmp_path):
    run = tmp_path / "run"
    watcher = Watcher(Watched((run,)), 0.1, draw=quick)
    assert watcher.state.waits
    watcher.start()
    state = until(watcher, lambda s: s.problem != "")
    assert "neither a file nor a directory" in state.problem
    assert state.waits
    assert "neither a file nor a directory" in state.page.decode()
    log(run, 1, 4)
    state = until(watcher, lambda s: not s.waits)
    assert state.words == "iteration 4"
    assert state.problem == ""
    page, version = state.page, state.version
    kept = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text('{"iteration"')
    state = until(watcher, lambda s: s.problem != "")
    assert "no whole line" in state.problem
    assert (state.page, state.version, state.waits) == (page, version, False)  # the last good one
    (run / "metrics.jsonl").write_text(kept)
    log(run, 5, 5)
    state = until(watcher, lambda s: s.words == "iteration 5")
    assert state.problem == ""
    assert state.version != version
    told = json.loads(state.message(state.changed + 2.5))
    assert told == {"version": state.version, "words": "iteration 5", "problem": "",
                    "waits": False, "age": 2.5}  # fmt: skip
    watcher.close()


def test_an_error_that_nobody_foresaw_ends_nothing(tmp_path):
    log(tmp_path, 1, 1)
    broken = [True]

    def draw(reading, title, live):
        if broken:
            raise KeyError(f"first\nsecond {EVIL}")
        return quick(reading, title, live)

    watcher = Watcher(Watched((tmp_path,)), 0.1, draw=draw)
    watcher.start()
    state = until(watcher, lambda s: s.problem != "")
    assert state.problem.startswith("KeyError: 'first")
    assert "\u202e" not in state.problem
    assert "<img" not in state.page.decode()
    broken.clear()
    assert until(watcher, lambda s: not s.waits).problem == ""  # nothing had changed
    watcher.close()


def test_pages_are_made_for_changes_and_with_rests(tmp_path):
    log(tmp_path, 1, 1)
    begins = []

    def draw(reading, title, live):
        begins.append(time.monotonic())
        return quick(reading, title, live)

    watcher = Watcher(Watched((tmp_path,)), 0.4, draw=draw)
    watcher.start()
    for i in range(2, 22):
        log(tmp_path, i, i)
        time.sleep(0.05)
    until(watcher, lambda s: s.words == "iteration 21")
    made = len(begins)
    assert made >= 2  # less often than changes came, which the pauses below say
    assert min(b - a for a, b in itertools.pairwise(begins)) >= 0.39
    time.sleep(1.0)
    assert len(begins) == made  # nothing changed
    watcher.close()


def test_new_runs_and_other_trainers_are_followed(tmp_path):
    runs, console = tmp_path / "runs", tmp_path / "console.log"
    runs.mkdir()
    lines = VERL.read_text().splitlines(keepends=True)
    cut = next(i for i, text in enumerate(lines) if "step:2 " in text)
    console.write_text("".join(lines[:cut]))
    many = Watcher(Watched((runs,)), 0.1, draw=quick)
    verl = Watcher(Watched((console,)), 0.1, draw=quick)
    many.start()
    verl.start()
    until(verl, lambda s: s.words == "iteration 1")
    with open(console, "a") as file:
        file.write(lines[cut])
    until(verl, lambda s: s.words == "iteration 2")
    checkpoint(runs / "trl", 3)
    until(many, lambda s: s.words == "iteration 3 of 50")
    checkpoint(runs / "trl", 6)
    until(many, lambda s: s.words == "iteration 6 of 50")
    log(runs / "ours", 1, 2)
    until(many, lambda s: s.words == "2 runs, iteration 2 to 6")
    many.close()
    verl.close()


# --- the gate


@pytest.mark.parametrize(
    ("host", "name"),
    [("localhost:8642", "localhost"), ("LOCALHOST", "localhost"), ("127.0.0.1:1", "127.0.0.1"),
     ("[::1]:8642", "[::1]"), ("[::1]", "[::1]"), ("a.b:", "a.b"), ("", ""), (None, ""),
     ("localhost:80.evil.com", "localhost:80.evil.com")],
)  # fmt: skip
def test_names_of_hosts(host, name):
    assert name_of(host) == name


@pytest.mark.parametrize(
    "host", [None, "", "evil.com", "evil.com:8642", "localhost.evil.com", "127.0.0.1.evil.com",
             "localhost@evil.com", "192.168.0.1", "0.0.0.0:8642"],
)  # fmt: skip
def test_other_names_are_refused_on_loopback(host):
    gate = Gate(None, loopback=True, cookie="c")
    assert "localhost" in gate.refusal(host, "", None)


def test_a_token_is_wanted_elsewhere():
    gate = gate_of("0.0.0.0", 8642)
    assert len(gate.token) >= 43  # 32 bytes in base64
    assert gate_of("0.0.0.0", 8642).token != gate.token
    assert gate.refusal("any.name", f"token={gate.token}", None) is None
    assert gate.refusal("any.name", f"a=b&token={gate.token}", None) is None
    assert gate.refusal("any.name", "", f"x=y; entrostat-8642={gate.token}") is None
    assert gate.refusal("any.name", "", f'{{"a": [1]}}; entrostat-8642={gate.token};z') is None
    wrong = [
        ("", None), ("token=", None), ("token", None), (f"token={gate.token[:-1]}", None),
        (f"token={gate.token}x", None), ("token=%ff%00", None), ("&" * 600, None),
        ("", "entrostat-8642="), ("", f"entrostat-1={gate.token}"), ("", "\0;;=;"),
        (f"TOKEN={gate.token}", "entrostat-8642=\u00e9"),
    ]  # fmt: skip
    for query, cookie in wrong:
        assert "token" in gate.refusal("any.name", query, cookie), (query, cookie)
    assert gate.set_cookie() == (f"entrostat-8642={gate.token}; Path=/; HttpOnly; SameSite=Strict")
    assert gate_of("127.0.0.1", 1).token is None
    assert gate_of("127.0.0.1", 1, always=True).token


@pytest.mark.parametrize(
    ("address", "own"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("fe80::1%eth0", False), ("::ffff:127.0.0.1", False)],
)  # fmt: skip
def test_loopback(address, own):
    assert is_loopback(address) is own


def test_what_is_no_address():
    assert resolve("127.0.0.1") == (socket.AF_INET, "127.0.0.1")
    for host in ("no such", "a" * 70):
        with pytest.raises(ValueError, match=r"is no address; 127\.0\.0\.1 is reached"):
            resolve(host)


# --- HTTP


def ask(server, path="/", method="GET", **headers):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def raw(server, text, timeout=120):
    """All that comes back for some bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout) as stream:
        stream.sendall(text)
        parts = []
        while part := stream.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_the_page_and_nothing_else(tmp_path):
    run = tmp_path / EVIL
    log(run, 1, 3)
    with served(run) as server:
        state = until(server.watcher, lambda s: not s.waits)
        status, headers, page = ask(server)
        assert (status, page) == (200, state.page)
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        assert headers["Cache-Control"] == "no-store"
        assert "Python" not in headers["Server"]
        text = page.decode()
        assert "<img src=x" not in text
        assert "\u202e" not in text
        assert "iterations</span> 3" in text
        assert "connect-src 'self'" in text
        assert f'data-version="{state.version}"' in text
        _, headers, packed = ask(server, Accept_Encoding="br, gzip")
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed) == page
        status, headers, body = ask(server, method="HEAD")
        assert (status, body, headers["Content-Length"]) == (200, b"", str(len(page)))
        assert ask(server, "/state", method="HEAD")[::2] == (200, b"")
        for path in ("/metrics.jsonl", "/../run/metrics.jsonl", "/%2e%2e/x", "/index.html",
                     "/state/", "/favicon.png", f"/{run}/metrics.jsonl"):  # fmt: skip
            status, headers, body = ask(server, path.split("<")[0])
            assert (status, headers["X-Content-Type-Options"]) == (404, "nosniff"), path
            assert body == b"There is the page, /, and nothing else.\n"
        assert ask(server, "/favicon.ico")[::2] == (204, b"")
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "X" * 50):
            status, headers, _ = ask(server, method=method)
            assert (status, headers["Allow"]) == (405, "GET, HEAD")
        for host in ("evil.com", "localhost.evil.com:80", ""):
            assert ask(server, Host=host)[0] == 403
            assert ask(server, "/state", Host=host)[0] == 403
        assert ask(server, Host="localhost:9999")[0] == 200  # through an ssh tunnel
        assert b" 403 " in raw(server, b"GET / HTTP/1.0\r\n\r\n").split(b"\r\n")[0]
        for nonsense in (b"\x16\x03\x01 hello\r\n\r\n", b"GET\r\n\r\n", b"GET " + b"x" * 70_000,
                         b"GET / HTTP/9.9\r\n\r\n"):  # fmt: skip
            answer = raw(server, nonsense)
            assert b"Traceback" not in answer
            assert b" 200 " not in answer[:20]
    # what is written to a file has no part of it
    page = write_run_report(run).read_text()
    for part in ("connect-src", 'id="live"', "setTimeout(ask", "noscript"):
        assert part not in page


def told(server, **headers):
    return json.loads(ask(server, "/state", **headers)[2])


def test_the_state_tells_of_pages(tmp_path):
    log(tmp_path, 1, 1)
    with served(tmp_path, draw=quick) as server:
        until(server.watcher, lambda s: not s.waits)
        assert ask(server, "/state")[1]["Content-Type"] == "application/json; charset=utf-8"
        first = told(server)
        assert first.keys() == {"version", "words", "problem", "waits", "age"}
        assert first["words"] == "iteration 1"
        assert ask(server)[2].decode().split()[-1] == first["version"]
        log(tmp_path, 2, 2)
        until(server.watcher, lambda s: s.words == "iteration 2")
        second = told(server)
        assert second["words"] == "iteration 2"
        assert second["version"] != first["version"]
        assert ask(server)[2].decode().split()[-1] == second["version"]


def test_who_does_not_ask_is_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(serving.Handler, "timeout", 0.2)
    log(tmp_path, 1, 1)
    with served(tmp_path, draw=quick) as server:
        assert raw(server, b"GET / HTTP/1.0\r\n") == b""
        assert ask(server)[0] == 200


def test_the_token_goes_from_the_address_into_a_cookie(tmp_path):
    log(tmp_path, 1, 1)
    with served(tmp_path, token=True, draw=quick) as server:
        until(server.watcher, lambda s: not s.waits)
        token = server.gate.token
        assert server.address == f"http://127.0.0.1:{server.port}/?token={token}"
        for path in ("/", "/state", "/nothing", "/?token=", "/?token=x"):
            status, headers, body = ask(server, path)
            assert status == 403
            assert "Set-Cookie" not in headers
            assert token.encode() not in body
        status, headers, body = ask(server, f"/?{urlsplit(server.address).query}")
        assert status == 200
        assert b'content="0;url=./"' in body  # on to the page, without the token in the address
        assert token.encode() not in body
        cookie, *attributes = headers["Set-Cookie"].split("; ")
        assert set(attributes) == {"Path=/", "HttpOnly", "SameSite=Strict"}
        assert ask(server, Cookie=cookie)[2].startswith(b"iteration 1")
        assert ask(server, Cookie=cookie + "x")[0] == 403
        assert ask(server, Cookie=cookie, Host="evil.com")[0] == 403  # loopback still
        assert told(server, Cookie=cookie)["words"] == "iteration 1"


def test_other_addresses_of_this_machine_want_a_token(tmp_path):
    with Server(Watcher(Watched((tmp_path,)), draw=quick), "0.0.0.0", 0) as server:
        assert server.gate.token
        host, query = socket.gethostname(), f"token={server.gate.token}"
        assert server.address == f"http://{host}:{server.port}/?{query}"


# --- the command


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["RUN", "--port", "70000"], "--port must be a whole number from 0 to 65535, got '70000'"),
        (["RUN", "--port", "-1"], "--port must be a whole number"),
        (["RUN", "--every", "0"], "--every must be a number from 0.1 to 86400, got '0'"),
        (["RUN", "--every", "nan"], "--every must be a number"),
        (["RUN", "--host", "no such"], "--host 'no such' is no address"),
        (["RUN", "--hots", "x"], "Did you mean '--host'?"),
        (["RUN", "--open", "--token"], "leave it out, and open the address that is printed"),
        (["--port", "0"], "watch needs the path of a run"),
        (["no/such/run"], "'no/such/run' is not there, nor the directory"),
    ],
)
def test_wrong_words_are_an_error_of_one_line(words, match, tmp_path, capsys):
    words = [str(tmp_path) if word == "RUN" else word for word in words]
    assert main(["watch", *words]) == 2
    error = capsys.readouterr().err
    assert match in error
    assert error.count("\n") == 1


def test_a_port_in_use_is_said(tmp_path, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["watch", str(tmp_path), "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"--port {port} of 127.0.0.1 cannot be had (Address already in use)" in error
    assert "or 0 for any that is free" in error


def test_the_command_serves_until_interrupted(tmp_path):
    log(tmp_path / "run", 1, 2)
    words = [sys.executable, "-m", "entrostat", "watch", "run", "--port", "0", "--token"]
    process = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell may ignore it
    )  # fmt: skip
    try:
        first = process.stdout.readline()
        assert process.stdout.readline() == "Ctrl-C ends the page; the runs go on\n"
        address = urlsplit(first.removeprefix("watching run: ").strip())
        assert address.hostname == "127.0.0.1"
        assert address.query.startswith("token=")
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=120)
        connection.request("GET", "/")
        assert connection.getresponse().status == 403
        connection.close()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, "")
    assert rest == "\n"
