"""Who may see the page: readers on this machine, or who has the token.

A page that only this machine can reach is still asked for by any site that its reader visits, under
a name of that site's own (DNS rebinding): the Host header says which name, and only this machine's
are answered. A page that others can reach wants the token, once in the address, then in a cookie
that no script can read and no other site's pages send.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from dataclasses import dataclass
from urllib.parse import parse_qs

NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
MOST = 256  # characters of a token that is compared


@dataclass(frozen=True)
class Gate:
    """What a request must bring.

    Attributes:
        token: a secret; None where nobody but this machine can ask.
        loopback: whether the server listens on this machine's own addresses alone.
        cookie: its name; another one for each port, which browsers do not tell apart.
    """

    token: str | None
    loopback: bool
    cookie: str

    def refusal(self, host: str | None, query: str, cookies: str | None) -> str | None:
        """Why a request is refused, in a sentence; None for one that is let in."""
        if self.loopback and name_of(host) not in NAMES:
            return "This page answers to localhost and 127.0.0.1 alone."
        if self.token is None or self.by_address(query) or self._by_cookie(cookies):
            return None
        return "This page needs the address with its token, which `entrostat watch` printed."

    def by_address(self, query: str) -> bool:
        try:
            given = parse_qs(query[:1000], max_num_fields=8).get("token", [])
        except ValueError:
            return False
        return any(self._fits(word) for word in given)

    def set_cookie(self) -> str:
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"

    def _by_cookie(self, cookies: str | None) -> bool:
        # one by one: what other servers of this host have set may be no cookie at all
        pairs = (part.strip().partition("=") for part in (cookies or "").split(";"))
        return any(name == self.cookie and self._fits(value) for name, _, value in pairs)

    def _fits(self, word: str) -> bool:
        own, given = (self.token or "").encode(), word[:MOST].encode("utf-8", "replace")
        return bool(own) and hmac.compare_digest(own, given)


def gate_of(address: str, port: int, always: bool = False) -> Gate:
    """The gate of a server that listens on an address; `always` wants a token on any."""
    loopback = is_loopback(address)
    token = secrets.token_urlsafe(32) if always or not loopback else None
    return Gate(token, loopback, f"entrostat-{port}")


def is_loopback(address: str) -> bool:
    """Whether an IP address is this machine's own, which no other can reach."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def name_of(host: str | None) -> str:
    """The name in a Host header, without the port and in small letters."""
    name = (host or "").strip().lower()
    head, colon, port = name.rpartition(":")
    return head if colon and (port.isdigit() or not port) else name


def resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """Family and IP address of what a user wants to listen on."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ValueError(
            f"--host {host!r} is no address; 127.0.0.1 is reached from this machine alone, "
            "0.0.0.0 from any"
        ) from None
    family, _, _, _, address = found[0]
    return family, str(address[0])
