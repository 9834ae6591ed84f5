"""Serve one page and the progress of its runs, with the standard library only.

There are two addresses, `/` and `/state`; no address maps to a file. A connection carries one
request.

A page on the loopback interface can still be requested by any site that its reader visits, through
a host name of that site (DNS rebinding). So only requests whose Host header names this machine are
answered. A page on other interfaces requires the token, once in the address, then in a cookie that
scripts cannot read and that other sites' pages do not send.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs

from .watcher import Watcher

NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
PATIENCE = 60.0  # seconds to receive a request or send an answer
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# after a redirect by header, the browser would still attribute the request to the linking site
# and withhold the cookie; a redirect by our page is our own
ENTER = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>entrostat</title>'
    '<meta http-equiv="refresh" content="0;url=./"><p><a href="./">To the page</a></p></html>'
)


@dataclass(frozen=True)
class Gate:
    token: str | None  # a secret; None if only this machine can connect
    loopback: bool  # whether the server listens on loopback addresses only
    cookie: str  # its name contains the port, since browsers share cookies between ports

    def refusal(self, host: str | None, query: str, cookies: str | None) -> str | None:
        """Say in a sentence why a request is refused; None if it is allowed."""
        if self.loopback and name_of(host) not in NAMES:
            return "This page answers to localhost and 127.0.0.1 alone."
        if self.token is None or self.by_address(query) or self._by_cookie(cookies):
            return None
        return "This page needs the address with its token, which `entrostat watch` printed."

    def by_address(self, query: str) -> bool:
        return any(self._fits(word) for word in parse_qs(query[:1000]).get("token", []))

    def set_cookie(self) -> str:
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"

    def _by_cookie(self, cookies: str | None) -> bool:
        # one by one: other servers on this host may have set malformed cookies
        pairs = (part.strip().partition("=") for part in (cookies or "").split(";"))
        return any(name == self.cookie and self._fits(value) for name, _, value in pairs)

    def _fits(self, word: str) -> bool:
        own, given = (self.token or "").encode(), word.encode("utf-8", "replace")
        return bool(own) and hmac.compare_digest(own, given)


def gate_of(address: str, port: int, always: bool = False) -> Gate:
    loopback = is_loopback(address)
    token = secrets.token_urlsafe(32) if always or not loopback else None
    return Gate(token, loopback, f"entrostat-{port}")


def is_loopback(address: str) -> bool:
    """Whether an IP address is a loopback address, unreachable from other machines."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def name_of(host: str | None) -> str:
    name = (host or "").strip().lower()
    head, colon, port = name.rpartition(":")
    return head if colon and (port.isdigit() or not port) else name


def resolve(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ValueError(
            f"--host {host!r} is no address; 127.0.0.1 is reached from this machine alone, "
            "0.0.0.0 from any"
        ) from None
    family, _, _, _, address = found[0]
    return family, str(address[0])


class Server(ThreadingMixIn, TCPServer):
    """Serves a watcher's page; with `token`, loopback requests need it too."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, watcher: Watcher, host: str, port: int, token: bool = False) -> None:
        self.watcher = watcher
        self.address_family, address = resolve(host)
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
        """The address to open, including the token if there is one."""
        host = socket.gethostname() if self._host in ("0.0.0.0", "::") else self._host  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        token = f"?token={self.gate.token}" if self.gate.token else ""
        return f"http://{host}:{self.port}/{token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that disconnected."""


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyrefly: ignore
    timeout = PATIENCE
    server_version = "entrostat"
    sys_version = ""

    def do_GET(self) -> None:
        gate, state = self.server.gate, self.server.watcher.state
        path, _, query = self.path.partition("?")
        refusal = gate.refusal(self.headers.get("Host"), query, self.headers.get("Cookie"))
        if refusal is not None:
            self._text(403, refusal)
        elif path == "/" and gate.by_address(query):
            self._send(200, "text/html", ENTER.encode(), {"Set-Cookie": gate.set_cookie()})
        elif path == "/" and "gzip" in (self.headers.get("Accept-Encoding") or "").lower():
            headers = {"Vary": "Accept-Encoding", "Content-Encoding": "gzip"}
            self._send(200, "text/html", state.packed, headers)
        elif path == "/":
            self._send(200, "text/html", state.page, {"Vary": "Accept-Encoding"})
        elif path == "/state":
            self._send(200, "application/json", state.message(time.time()).encode())
        elif path == "/favicon.ico":  # browsers request it and log a 404 in the page's console
            self._send(204, "image/x-icon", b"")
        else:
            self._text(404, "There is the page, /, and nothing else.")

    do_HEAD = do_GET  # noqa: N815

    def _text(self, code: int, words: str, more: Mapping[str, str] | None = None) -> None:
        self._send(code, "text/plain", f"{words}\n".encode(), more)

    def _send(
        self, code: int, kind: str, body: bytes, more: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(code)
        known = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in {**HEADERS, **known, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer requests that the base class rejects: another method, or not HTTP."""
        if code == 501:
            self._text(405, "Only GET and HEAD are answered.", {"Allow": "GET, HEAD"})
        else:
            self._text(code, "This is no request that a page needs.")

    def log_message(self, format: str, *args: Any) -> None:
        """Disabled: a line per request would hide important messages."""
