"""Every expected failure: one stable code, one class, one exit status each.

Codes are data for scripts; classes are for `except`. `docs/errors.md` lists meaning and
remedy, and a test compares it with `ErrorCode`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ErrorCode(StrEnum):
    """Stable, public names. Add freely; never rename or reuse one."""

    INSUFFICIENT_CAPACITY = "insufficient_capacity"
    QUOTA_EXCEEDED = "quota_exceeded"
    BUDGET_EXCEEDED = "budget_exceeded"
    INSUFFICIENT_FUNDS = "insufficient_funds"
    PROVIDER_AUTH = "provider_auth"
    PROVIDER_ERROR = "provider_error"
    UNSUPPORTED = "unsupported"
    WAIT_TIMEOUT = "wait_timeout"
    TOO_MANY_REQUESTS = "too_many_requests"
    INTERNAL = "internal"
    INVALID_SPEC = "invalid_spec"
    INVALID_SHAPE = "invalid_shape"
    PRICE_UNAVAILABLE = "price_unavailable"
    MODEL_NOT_CONFIGURED = "model_not_configured"
    NOT_FOUND = "not_found"
    VOLUME_NOT_FOUND = "volume_not_found"
    NAME_IN_USE = "name_in_use"
    NAME_CONFLICT = "name_conflict"
    PRICE_CHANGED = "price_changed"
    QUOTE_EXPIRED = "quote_expired"
    VOLUME_IN_USE = "volume_in_use"
    CONFLICT_PHASE = "conflict_phase"
    RECOVERY_EXHAUSTED = "recovery_exhausted"
    PROVIDER_UNREACHABLE = "provider_unreachable"
    SERVICE_UNREACHABLE = "service_unreachable"
    PORT_TAKEN = "port_taken"
    UNAUTHORIZED = "unauthorized"
    INVALID_REQUEST = "invalid_request"
    REQUEST_TOO_LARGE = "request_too_large"
    NO_REPLICA = "no_replica"
    REPLICA_UNREACHABLE = "replica_unreachable"
    DEPLOYMENT_DISABLED = "deployment_disabled"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a user's input.

    Attributes:
        field: Dotted path of the offending key, `cluster.nodes`.
        message: What is wrong and what would be right; never a secret value.
        line: 1-based line in the file, None when there is no file.
        file: Its name, where mistakes of several files are told together.
    """

    field: str
    message: str
    line: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        where = f"{self.file}: " if self.file is not None else ""
        where += f"line {self.line}: " if self.line is not None else ""
        return f"{where}{self.field}: {self.message}" if self.field else f"{where}{self.message}"


class GarrisonError(Exception):
    """Base of all expected failures. A bug raises something else.

    Attributes:
        code: The stable name of the outcome.
        retryable: Whether the same call can succeed later without any change by a person.
        retry_after_seconds: The earliest time at which to call again, as the provider said.
    """

    code: ErrorCode = ErrorCode.INTERNAL
    retryable: bool = False
    retry_after_seconds: float | None = None


class Faulty(GarrisonError):
    """An input with mistakes, all of which are told at once.

    Attributes:
        problems: Each mistake with its field.
        source: The file's name as the user gave it.
    """

    def __init__(
        self, message: str, *, problems: tuple[Problem, ...] = (), source: str | None = None
    ) -> None:
        """Join the problems into the message.

        Args:
            message: What was being read.
            problems: All mistakes found.
            source: The file's name as the user gave it.
        """
        self.problems = problems
        self.source = source
        prefix = f"{source}: " if source else ""
        super().__init__("\n".join([prefix + message, *(f"  {p}" for p in problems)]))


class InsufficientCapacity(GarrisonError):
    """The provider has not enough free machines of this kind here now."""

    code = ErrorCode.INSUFFICIENT_CAPACITY


class QuotaExceeded(GarrisonError):
    """The account's quota at the provider does not allow it."""

    code = ErrorCode.QUOTA_EXCEEDED


class BudgetExceeded(GarrisonError):
    """A budget set in Garrison does not allow it."""

    code = ErrorCode.BUDGET_EXCEEDED


class InsufficientFunds(GarrisonError):
    """The prepaid balance is too small."""

    code = ErrorCode.INSUFFICIENT_FUNDS


class ProviderAuth(GarrisonError):
    """The provider refuses our credentials or permissions."""

    code = ErrorCode.PROVIDER_AUTH


class ProviderError(GarrisonError):
    """The provider answered with an error that nobody mapped; its text is in the message.

    Tried again a bounded number of times by the activity that met it.
    """

    code = ErrorCode.PROVIDER_ERROR
    retryable = True


class Unsupported(Faulty):
    """The provider or this version of Garrison cannot do it."""

    code = ErrorCode.UNSUPPORTED


class WaitTimeout(GarrisonError):
    """The time given for waiting passed; the resource goes on by itself."""

    code = ErrorCode.WAIT_TIMEOUT


class TooManyRequests(GarrisonError):
    """Too many calls at once; try again after `retry_after_seconds`."""

    code = ErrorCode.TOO_MANY_REQUESTS
    retryable = True

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class InvalidSpec(Faulty):
    """The input is not valid; `problems` has every mistake at once."""

    code = ErrorCode.INVALID_SPEC


class InvalidShape(Faulty):
    """No machine has this shape, or the operator allows none so large; says what would do."""

    code = ErrorCode.INVALID_SHAPE


class PriceUnavailable(GarrisonError):
    """No usable price is known: missing, zero, negative or not a number."""

    code = ErrorCode.PRICE_UNAVAILABLE


class ModelNotConfigured(GarrisonError):
    """No `models:` entry of the settings matches."""

    code = ErrorCode.MODEL_NOT_CONFIGURED


class NotFound(GarrisonError):
    """There is no living resource of that name."""

    code = ErrorCode.NOT_FOUND


class VolumeNotFound(GarrisonError):
    """There is no such volume."""

    code = ErrorCode.VOLUME_NOT_FOUND


class NameInUse(GarrisonError):
    """A living resource has this name."""

    code = ErrorCode.NAME_IN_USE


class NameConflict(GarrisonError):
    """The provider has something of this name that is not ours."""

    code = ErrorCode.NAME_CONFLICT


class PriceChanged(GarrisonError):
    """The price, or a field that the price depends on, is not the accepted one."""

    code = ErrorCode.PRICE_CHANGED


class QuoteExpired(GarrisonError):
    """The quote was not launched in time."""

    code = ErrorCode.QUOTE_EXPIRED


class VolumeInUse(GarrisonError):
    """A cluster holds the volume."""

    code = ErrorCode.VOLUME_IN_USE


class ConflictPhase(GarrisonError):
    """The resource is in a phase that does not allow it."""

    code = ErrorCode.CONFLICT_PHASE


class RecoveryExhausted(GarrisonError):
    """The attempts of this unhealthy episode are spent."""

    code = ErrorCode.RECOVERY_EXHAUSTED


class ProviderUnreachable(GarrisonError):
    """The provider did not answer; that says nothing about its machines."""

    code = ErrorCode.PROVIDER_UNREACHABLE
    retryable = True


class ServiceUnreachable(GarrisonError):
    """No Temporal server, or no Garrison worker, answered."""

    code = ErrorCode.SERVICE_UNREACHABLE
    retryable = True


class PortTaken(GarrisonError):
    """Another program listens on the port."""

    code = ErrorCode.PORT_TAKEN


class Unauthorized(GarrisonError):
    """The request lacks the bearer token, or has another one."""

    code = ErrorCode.UNAUTHORIZED


class InvalidRequest(GarrisonError):
    """The request is not proper HTTP, or two readers could take it for different ones."""

    code = ErrorCode.INVALID_REQUEST


class RequestTooLarge(GarrisonError):
    """The body is larger than what is taken here."""

    code = ErrorCode.REQUEST_TOO_LARGE


class NoReplica(GarrisonError):
    """No replica of the deployment could take the request in time."""

    code = ErrorCode.NO_REPLICA
    retryable = True

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ReplicaUnreachable(GarrisonError):
    """A replica had the request and did not answer; it may have been executed."""

    code = ErrorCode.REPLICA_UNREACHABLE


class DeploymentDisabled(GarrisonError):
    """The deployment takes no requests until a person enables it."""

    code = ErrorCode.DEPLOYMENT_DISABLED


def _classes() -> dict[ErrorCode, type[GarrisonError]]:
    classes: dict[ErrorCode, type[GarrisonError]] = {}
    for cls in (*GarrisonError.__subclasses__(), *Faulty.__subclasses__()):
        if cls is not Faulty:
            classes[cls.code] = cls
    return classes


ERROR_CLASSES: dict[ErrorCode, type[GarrisonError]] = _classes()
"""The class of each code; `internal` has none, as only bugs have it."""

_CONFLICTS = {
    ErrorCode.NAME_IN_USE,
    ErrorCode.NAME_CONFLICT,
    ErrorCode.PRICE_CHANGED,
    ErrorCode.QUOTE_EXPIRED,
    ErrorCode.VOLUME_IN_USE,
    ErrorCode.CONFLICT_PHASE,
    ErrorCode.RECOVERY_EXHAUSTED,
}
_USAGE = {
    ErrorCode.INVALID_SPEC,
    ErrorCode.INVALID_SHAPE,
    ErrorCode.PRICE_UNAVAILABLE,
    ErrorCode.MODEL_NOT_CONFIGURED,
}
_MISSING = {ErrorCode.NOT_FOUND, ErrorCode.VOLUME_NOT_FOUND}
_UNREACHABLE = {
    ErrorCode.PROVIDER_UNREACHABLE,
    ErrorCode.SERVICE_UNREACHABLE,
    ErrorCode.PORT_TAKEN,
}


def exit_status(code: ErrorCode) -> int:
    """Return the exit status of the command line for a code (1 to 5)."""
    groups = ((_USAGE, 2), (_MISSING, 3), (_CONFLICTS, 4), (_UNREACHABLE, 5))
    return next((status for codes, status in groups if code in codes), 1)


_HTTP_STATUS = {
    ErrorCode.INSUFFICIENT_CAPACITY: 409,
    ErrorCode.QUOTA_EXCEEDED: 403,
    ErrorCode.BUDGET_EXCEEDED: 403,
    ErrorCode.INSUFFICIENT_FUNDS: 402,
    ErrorCode.PROVIDER_AUTH: 502,
    ErrorCode.PROVIDER_ERROR: 502,
    ErrorCode.UNSUPPORTED: 422,
    ErrorCode.WAIT_TIMEOUT: 504,
    ErrorCode.TOO_MANY_REQUESTS: 429,
    ErrorCode.INTERNAL: 500,
    ErrorCode.PROVIDER_UNREACHABLE: 503,
    ErrorCode.SERVICE_UNREACHABLE: 503,
    ErrorCode.PORT_TAKEN: 409,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.REQUEST_TOO_LARGE: 413,
    ErrorCode.NO_REPLICA: 503,
    ErrorCode.REPLICA_UNREACHABLE: 502,
    ErrorCode.DEPLOYMENT_DISABLED: 503,
}


def http_status(code: ErrorCode) -> int:
    """Return the HTTP status that a gateway gives for a code."""
    if code in _HTTP_STATUS:
        return _HTTP_STATUS[code]
    return {2: 422, 3: 404, 4: 409}[exit_status(code)]


def error_of(code: ErrorCode, message: str, *, problems: tuple[Problem, ...] = ()) -> GarrisonError:
    """Return the exception of a code, as a client raises what a workflow answered.

    Args:
        code: Of the outcome.
        message: All of it, the problems too.
        problems: The same as data; only of an input with mistakes.
    """
    cls = ERROR_CLASSES.get(code)
    if problems and cls is not None and issubclass(cls, Faulty):
        return cls(message.partition("\n")[0], problems=problems)
    return cls(message) if cls is not None else GarrisonError(message)
