"""What the simulated cloud's error codes mean: the codes of real clouds, mapped once.

| kind | codes | becomes |
|---|---|---|
| capacity | `InsufficientInstanceCapacity`, `InsufficientHostCapacity`, \
`InsufficientReservedInstanceCapacity`, `UnfulfillableCapacity`, `SpotMaxPriceTooLow`, \
`Unsupported` (not sold in this zone), `ZONE_RESOURCE_POOL_EXHAUSTED`, \
`ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS`, `OutOfHostCapacity`, `insufficient-capacity` | a \
`Refusal` of a launch; `no_capacity` of a restart (`Unsupported`: `unsupported`) |
| quota | `VcpuLimitExceeded`, `InstanceLimitExceeded`, `MaxSpotInstanceCountExceeded`, \
`QUOTA_EXCEEDED`, `LimitExceeded`, `quota-exceeded` | `QuotaExceeded` |
| auth | `AuthFailure`, `UnauthorizedOperation`, `AccessDenied`, `ExpiredToken`, \
`InvalidClientTokenId`, `NotAuthenticated`, `invalid-api-key` | `ProviderAuth` |
| invalid | `InvalidParameterValue`, `InvalidParameterCombination`, `MissingParameter`, \
`ValidationError`, `InvalidInstanceType.NotFound`, `InvalidAMIID.NotFound`, \
`IdempotentParameterMismatch` | `InvalidSpec` |
| throttled | `RequestLimitExceeded`, `Throttling`, `ThrottlingException`, `TooManyRequests`, \
`rateLimitExceeded` | `TooManyRequests` |
| clock | `RequestExpired`, `RequestTimeTooSkewed` | `ProviderError` that names the clock |
| transient | `InternalError`, `InternalFailure`, `ServiceUnavailable`, `Unavailable`, \
`ConnectionReset`, `Timeout`, `RequestTimeout` | `ProviderUnreachable` |
| gone | `InvalidInstanceID.NotFound`, `NotFound`, `404`, `AlreadyTerminating`, \
`IdempotentInstanceTerminated` | success of a terminate; `gone` of a restart |
| unknown | any other | `ProviderError` with the code and its text |
"""

from __future__ import annotations

from enum import StrEnum

from garrison.errors import (
    ErrorCode,
    GarrisonError,
    InvalidSpec,
    ProviderAuth,
    ProviderError,
    ProviderUnreachable,
    QuotaExceeded,
    TooManyRequests,
)

UNSUPPORTED = "Unsupported"
NO_CAPACITY = "InsufficientInstanceCapacity"


class Kind(StrEnum):
    """What a vendor's code amounts to."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    AUTH = "auth"
    INVALID = "invalid"
    THROTTLED = "throttled"
    CLOCK = "clock"
    TRANSIENT = "transient"
    GONE = "gone"
    UNKNOWN = "unknown"


_CODES: dict[Kind, tuple[str, ...]] = {
    Kind.CAPACITY: (
        NO_CAPACITY,
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "UnfulfillableCapacity",
        "SpotMaxPriceTooLow",
        UNSUPPORTED,
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "OutOfHostCapacity",
        "insufficient-capacity",
    ),
    Kind.QUOTA: (
        "VcpuLimitExceeded",
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "QUOTA_EXCEEDED",
        "LimitExceeded",
        "quota-exceeded",
    ),
    Kind.AUTH: (
        "AuthFailure",
        "UnauthorizedOperation",
        "AccessDenied",
        "ExpiredToken",
        "InvalidClientTokenId",
        "NotAuthenticated",
        "invalid-api-key",
    ),
    Kind.INVALID: (
        "InvalidParameterValue",
        "InvalidParameterCombination",
        "MissingParameter",
        "ValidationError",
        "InvalidInstanceType.NotFound",
        "InvalidAMIID.NotFound",
        "IdempotentParameterMismatch",
    ),
    Kind.THROTTLED: (
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "rateLimitExceeded",
    ),
    Kind.CLOCK: ("RequestExpired", "RequestTimeTooSkewed"),
    Kind.TRANSIENT: (
        "InternalError",
        "InternalFailure",
        "ServiceUnavailable",
        "Unavailable",
        "ConnectionReset",
        "Timeout",
        "RequestTimeout",
    ),
    Kind.GONE: (
        "InvalidInstanceID.NotFound",
        "NotFound",
        "404",
        "AlreadyTerminating",
        "IdempotentInstanceTerminated",
    ),
}
_KINDS = {code: kind for kind, codes in _CODES.items() for code in codes}

_FAILURES = {
    Kind.CAPACITY: ErrorCode.INSUFFICIENT_CAPACITY,
    Kind.QUOTA: ErrorCode.QUOTA_EXCEEDED,
    Kind.AUTH: ErrorCode.PROVIDER_AUTH,
    Kind.INVALID: ErrorCode.INVALID_SPEC,
}


def kind_of(code: str) -> Kind:
    """Return what a code amounts to; a code that is not in the table is `unknown`."""
    return _KINDS.get(code, Kind.UNKNOWN)


def failure_of(code: str) -> ErrorCode:
    """Return what a failed start of one machine is called."""
    return _FAILURES.get(kind_of(code), ErrorCode.PROVIDER_ERROR)


def error_for(code: str, message: str, *, retry_after_seconds: float | None) -> GarrisonError:
    """Return the exception for a code that no call has a better answer for."""
    error = _error(kind_of(code), f"{code}: {message}")
    error.retry_after_seconds = retry_after_seconds
    return error


def _error(kind: Kind, text: str) -> GarrisonError:
    if kind is Kind.CLOCK:
        return ProviderError(f"{text} (this machine's clock may be wrong)")
    classes: dict[Kind, type[GarrisonError]] = {
        Kind.QUOTA: QuotaExceeded,
        Kind.AUTH: ProviderAuth,
        Kind.INVALID: InvalidSpec,
        Kind.THROTTLED: TooManyRequests,
        Kind.TRANSIENT: ProviderUnreachable,
    }
    return classes.get(kind, ProviderError)(text)
