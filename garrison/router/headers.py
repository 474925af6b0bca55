"""What headers mean to a proxy, and which go on (RFC 9110 section 7.6, RFC 9112 section 6)."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from garrison.errors import InvalidRequest, Unauthorized, Unsupported

Raw = tuple[bytes, bytes]

TOKEN_HEADER = b"garrison-token"
"""Brings the router's token where `Authorization` is meant for the replica."""

CONTROL_HEADER = b"garrison-control"
"""Brings the secret by which the router knows workers."""

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NEVER_SENT_ON = _HOP_BY_HOP | {b"expect", b"content-length", TOKEN_HEADER, CONTROL_HEADER}
_FORWARDED = frozenset({b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-prefix"})


@dataclass(frozen=True, slots=True)
class Framing:
    """How the end of a request's body is told.

    Attributes:
        length: In bytes as the header says, None without one.
        chunked: It comes in chunks, of a number that nobody knows yet.
    """

    length: str | None
    chunked: bool

    @property
    def has_body(self) -> bool:
        """Whether a body may come."""
        return self.chunked or self.length is not None


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asked, for the replica.

    Attributes:
        client: Address of the other end of the connection, None where it has none.
        scheme: `http`.
        prefix: What the router took off the path.
    """

    client: str | None
    scheme: str
    prefix: str


def framing_of(headers: Iterable[Raw]) -> Framing:
    """Return how a request's body ends.

    Raises:
        InvalidRequest: In two ways, of which another reader may choose the other one.
    """
    lengths = [value for name, value in headers if name == b"content-length"]
    chunked = any(name == b"transfer-encoding" for name, _ in headers)
    if lengths and chunked:
        raise InvalidRequest("a request has either Content-Length or Transfer-Encoding, not both")
    return Framing(lengths[0].decode("ascii") if lengths else None, chunked)


def check_upgrade(headers: Iterable[Raw]) -> None:
    """Refuse what HTTP cannot carry on; other upgrades may be ignored, and are.

    Raises:
        Unsupported: A WebSocket is asked for.
    """
    if any(name == b"upgrade" and b"websocket" in value.lower() for name, value in headers):
        raise Unsupported("the router carries no WebSockets; use server-sent events or polling")


def check_token(headers: Iterable[Raw], token: str | None) -> None:
    """Check that a request brings the router's token.

    Raises:
        Unauthorized: It does not.
    """
    if token is None or any(_is_token(name, value, token) for name, value in headers):
        return
    raise Unauthorized("this router answers only who brings its token as Authorization: Bearer")


def check_secret(headers: Iterable[Raw], secret: str | None) -> None:
    """Check that it is a worker of the installation who asks.

    Raises:
        Unauthorized: It is not.
    """
    if secret is None:
        return
    for name, value in headers:
        if name == CONTROL_HEADER and hmac.compare_digest(value, secret.encode()):
            return
    raise Unauthorized("what is below /-/ is for workers, who bring the installation's secret")


def may_repeat(method: str, headers: Iterable[Raw]) -> bool:
    """Return whether a request may be executed twice."""
    return method in IDEMPOTENT or any(name == b"idempotency-key" for name, _ in headers)


def for_replica(headers: Iterable[Raw], origin: Origin, token: str | None) -> list[tuple[str, str]]:
    """Return a request's headers as the replica gets them, without those that frame the body."""
    headers = tuple(headers)
    dropped = _NEVER_SENT_ON | _FORWARDED | {b"x-forwarded-for"} | _named_by_connection(headers)
    sent = [
        (name.decode("ascii"), _text(value))
        for name, value in headers
        if name not in dropped and not (token is not None and _is_token(name, value, token))
    ]
    return [*sent, *_forwarded(headers, origin)]


def for_client(headers: Iterable[Raw]) -> list[Raw]:
    """Return an answer's headers as the client gets them."""
    lowered = [(name.lower(), value) for name, value in headers]
    dropped = _HOP_BY_HOP | _named_by_connection(lowered)
    if any(name == b"transfer-encoding" for name, _ in lowered):
        # The length, if any, is not that of the body (RFC 9112 section 6.3).
        dropped = dropped | {b"content-length"}
    return [(name, value) for name, value in lowered if name not in dropped]


def _forwarded(headers: Iterable[Raw], origin: Origin) -> Iterable[tuple[str, str]]:
    came = [_text(value) for name, value in headers if name == b"x-forwarded-for"]
    path = [*came, origin.client] if origin.client else came
    if path:
        yield "x-forwarded-for", ", ".join(path)
    host = next((_text(value) for name, value in headers if name == b"host"), None)
    if host:
        yield "x-forwarded-host", host
    yield "x-forwarded-proto", origin.scheme
    yield "x-forwarded-prefix", origin.prefix


def _named_by_connection(headers: Iterable[Raw]) -> set[bytes]:
    listed = b",".join(value for name, value in headers if name == b"connection")
    return {one.strip().lower() for one in listed.split(b",")}


def _is_token(name: bytes, value: bytes, token: str) -> bool:
    if name == b"authorization":
        scheme, _, value = value.partition(b" ")
        if scheme.lower() != b"bearer":
            return False
    elif name != TOKEN_HEADER:
        return False
    return hmac.compare_digest(value.strip(), token.encode("ascii"))


def _text(value: bytes) -> str:
    # The client library writes UTF-8, so that what is UTF-8 goes on byte for byte.
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
