"""A server of one page and its events, of the standard library.

Two addresses, `/` and `/events`, and nothing that leads from an address to a file. A connection
carries one request. One that does not ask within seconds is closed, as is an event stream whose
reader has gone.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from .auth import gate_of, resolve
from .watcher import State, Watcher

ASK = 10.0  # seconds for a request to come in
SEND = 60.0  # seconds for an answer to go out
BEAT = 15.0  # seconds between two messages to a page, at most; live.js counts on it
MOST = 64  # connections at once

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# a redirect by header would still count as the site's that had the link, whose browser then keeps
# the cookie back; one by the page is our own
ENTER = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>entrostat</title>'
    '<meta http-equiv="refresh" content="0;url=./"><p><a href="./">To the page</a></p></html>'
)


class Server(ThreadingMixIn, TCPServer):
    """Serves what a watcher has.

    Args:
        watcher: started or not.
        host: a name or an address of this machine.
        port: 0 takes any that is free.
        token: whether one is asked for on loopback too; elsewhere it always is.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, watcher: Watcher, host: str, port: int, token: bool = False) -> None:
        self.watcher = watcher
        self.address_family, address = resolve(host)
        self._open: dict[Any, float] = {}
        self._lock = threading.Lock()
        self.closing = threading.Event()
        try:
            super().__init__((address, port), Handler)
        except OSError as error:
            raise ValueError(
                f"--port {port} of {host} cannot be had ({error.strerror or error}); name another "
                "one, or 0 for any that is free"
            ) from None
        self.gate = gate_of(address, self.port, token)
        self._host = host

    @property
    def port(self) -> int:
        return self.server_address[1]

    @property
    def address(self) -> str:
        """What a reader opens; with the token, where there is one."""
        host = socket.gethostname() if self._host in ("0.0.0.0", "::") else self._host  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        token = f"?token={self.gate.token}" if self.gate.token else ""
        return f"http://{host}:{self.port}/{token}"

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._open)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for each connection, up to a number."""
        with self._lock:
            full = len(self._open) >= MOST
            if not full:
                self._open[request] = time.monotonic() + ASK
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def asked(self, request: Any) -> None:
        """A request has come in whole: its connection may stay."""
        with self._lock:
            self._open[request] = float("inf")
        request.settimeout(SEND)

    def close_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().close_request(request)

    def service_actions(self) -> None:
        """Twice a second: end the connections that take too long to ask."""
        now = time.monotonic()
        with self._lock:
            slow = [request for request, until in self._open.items() if now > until]
        for request in slow:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # its thread sees the end, and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader went away in the middle; nobody is left to be told."""

    def server_close(self) -> None:
        """Let the port go, and the event streams end."""
        self.closing.set()
        super().server_close()


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyrefly: ignore
    timeout = ASK
    server_version = "entrostat"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        self.server.asked(self.connection)
        gate = self.server.gate
        path, _, query = self.path.partition("?")
        cookies = self.headers.get("Cookie")
        refusal = gate.refusal(self.headers.get("Host"), query, cookies)
        if refusal is not None:
            self._text(403, refusal, with_body)
        elif path == "/" and gate.token is not None and gate.by_address(query):
            self._send(200, "text/html", ENTER.encode(), with_body, **{
                "Set-Cookie": gate.set_cookie()
            })  # fmt: skip
        elif path == "/":
            self._page(self.server.watcher.state, with_body)
        elif path == "/events":
            self._events(with_body)
        elif path == "/favicon.ico":  # browsers ask, and write a 404 to the page's console
            self._send(204, "image/x-icon", b"", with_body)
        else:
            self._text(404, "There is the page, /, and nothing else.", with_body)

    def _page(self, state: State, with_body: bool) -> None:
        packs = "gzip" in (self.headers.get("Accept-Encoding") or "").lower()
        more = {"Content-Encoding": "gzip"} if packs else {}
        body = state.packed if packs else state.page
        self._send(200, "text/html", body, with_body, Vary="Accept-Encoding", **more)

    def _events(self, with_body: bool) -> None:
        self._head(200, "text/event-stream", {})
        if not with_body:
            return
        number, told = None, 0.0
        while not self.server.closing.is_set() and not _gone(self.connection):
            state = self.server.watcher.wait(number, 0.5)
            now = time.monotonic()
            if state.number != number or now - told > BEAT:
                self.wfile.write(f"data: {state.message(time.time())}\n\n".encode())
                number, told = state.number, now

    def _text(self, code: int, words: str, with_body: bool, **more: str) -> None:
        self._send(code, "text/plain", f"{words}\n".encode(), with_body, **more)

    def _send(self, code: int, kind: str, body: bytes, with_body: bool, **more: str) -> None:
        self._head(code, kind, {**more, "Content-Length": str(len(body))})
        if with_body:
            self.wfile.write(body)

    def _head(self, code: int, kind: str, more: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses: another method, or what is no HTTP."""
        if code == 501:
            self._text(405, "Only GET and HEAD are answered.", True, Allow="GET, HEAD")
        else:
            self._text(code, "This is no request that a page needs.", True)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line for each request would hide what matters."""


def _gone(connection: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(0)) and not connection.recv(1, socket.MSG_PEEK)
