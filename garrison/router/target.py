"""Which deployment a request is for, and what of its path is the replica's.

Bytes go on as they came: nothing is decoded, no dot segment is resolved, no slash is merged. So
`/a/../b` is `/../b` of the deployment `a`, whatever that makes of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from garrison.errors import InvalidRequest, NotFound

_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_AUTHORITY = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked for.

    Attributes:
        deployment: In lower case; `prefix` is the path's part that names it, as it was written.
        path: Of the replica, without the query.
        rest: The same with the query.
    """

    deployment: str
    prefix: str
    path: str
    rest: str


def origin_form(target: bytes) -> bytes:
    """Return the path of a target that may be a whole address, as proxies are sent.

    Raises:
        InvalidRequest: It is no path.
    """
    if not target.startswith(b"/"):
        if not (found := _AUTHORITY.match(target)):
            raise InvalidRequest("the request's target must be a path or a whole address")
        target = target[found.end() :] or b"/"
    if b"#" in target:
        raise InvalidRequest("the request's target must not contain a fragment")
    return target


def split_target(path: bytes, query: bytes) -> Target:
    """Return the parts of a path, see `origin_form`.

    Raises:
        NotFound: It cannot be a deployment's.
    """
    name, slash, after = path[1:].partition(b"/")
    if not _ID.fullmatch(name):
        raise NotFound("the path must begin with the id of a deployment: /<deployment>/...")
    prefix = name.decode("ascii")
    rest = (slash + after).decode("ascii") or "/"
    whole = f"{rest}?{query.decode('ascii')}" if query else rest
    return Target(prefix.lower(), f"/{prefix}", rest, whole)
