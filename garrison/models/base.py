"""The two kinds of values that cross a boundary.

A `Model` comes from a person and is strict: an unknown key is a mistake. A `Message` passes
between our own processes, possibly of different versions, and ignores keys it does not know.
Both are frozen and keep their input out of error messages, since it may hold a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from garrison.models.money import show_usd

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
"""A resource's name: always text, unique among the living of a kind, ignoring case."""


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a time needs its time zone")
    return value.astimezone(UTC)


Time = Annotated[datetime, AfterValidator(_utc)]
"""An aware UTC time."""

Seconds = Annotated[
    timedelta,
    PlainSerializer(lambda value: value.total_seconds(), return_type=float, when_used="json"),
]
"""A duration; seconds in JSON."""

Money = Annotated[Decimal, Field(allow_inf_nan=False)]
"""US dollars, exact; a decimal string in JSON."""


Rate = Annotated[Money, PlainSerializer(show_usd, return_type=str, when_used="json")]
"""US dollars an hour, exact; in JSON as people read it: `0.00`, `0.005`, `1.212`."""


class Model(BaseModel):
    """Strict value from a person.

    Attributes:
        other_words: What people call a key elsewhere, and the key; only to name it to them.
    """

    other_words: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True
    )


class Message(BaseModel):
    """Tolerant value between processes; a new field needs a default."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )

    def replace(self, **changes: Any) -> Any:
        """Return a copy with some fields changed."""
        return self.model_copy(update=changes)
