"""Which values of an environment may travel and be stored: sealed, or said to be no secret.

Pure text rules, so that a workflow's validator can apply them without any key. The forms are
those of `garrison.sealing`; a test holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from garrison.models.cluster import PLAIN_PREFIX, SECRET_PREFIX

_SEALED = re.compile(
    r"sealed:[0-9a-f]{16}:"
    r"(?:[A-Za-z0-9+/]{4}){16,}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
)
_REFERENCE = re.compile(r"secret:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def is_sealed(value: str) -> bool:
    """Whether a value has the form of a sealed text; only its key tells more."""
    return _SEALED.fullmatch(value) is not None


def unsealed_names(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names whose values are neither sealed, `plain:` nor `secret:NAME`."""
    return tuple(name for name, value in env.items() if not _may_travel(value))


def _may_travel(value: str) -> bool:
    if value.startswith(SECRET_PREFIX):
        return _REFERENCE.fullmatch(value) is not None
    return value.startswith(PLAIN_PREFIX) or is_sealed(value)
