"""The one place where settings are read: the environment, and `garrison.yaml`.

The environment wins over the file. The address and namespace of the Temporal Service are
Temporal's own settings (`TEMPORAL_ADDRESS`, profiles) and are read where the client is made.
"""

from __future__ import annotations

import getpass
import os
import re
import secrets
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import platformdirs
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from garrison.errors import InvalidSpec, NotFound, Problem
from garrison.models.base import Model, Name
from garrison.models.cluster import ShapeLimits
from garrison.models.document import MAX_BYTES, Document, bind, decode, load_document
from garrison.models.offer import CapacityType, Offer
from garrison.models.problems import KeyPath
from garrison.models.worker_file import Models, ModelSettings
from garrison.private_files import create_once, make_folder, open_regular

INSTALLATION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9-]{0,31}$"
"""Goes into provider tags and names, which are short and of few characters everywhere."""

_NUMBER = re.compile(r"\d{1,9}(\.\d{1,6})?")


def _duration(unit: timedelta, *, bounds: tuple[int, int] | None = None) -> BeforeValidator:
    wanted = "above 0, such as 15 or 0.5" if bounds is None else f"from {bounds[0]} to {bounds[1]}"

    def convert(value: Any) -> Any:
        if isinstance(value, timedelta):
            return value
        text = str(value)
        number = Decimal(text) if _NUMBER.fullmatch(text) else Decimal(0)
        if number == 0 or (bounds is not None and not bounds[0] <= number <= bounds[1]):
            raise ValueError(f"must be a plain number {wanted}, not {text[:64]!r}")
        return unit * float(text)

    return BeforeValidator(convert)


InSeconds = Annotated[timedelta, _duration(timedelta(seconds=1))]
"""A duration that the file gives in seconds."""

HeartbeatTimeout = Annotated[timedelta, _duration(timedelta(seconds=1), bounds=(2, 600))]
"""Below it a busy worker would be taken for a dead one; above it a dead one holds up purchases."""

InMinutes = Annotated[timedelta, _duration(timedelta(minutes=1))]
"""A duration that the file gives in minutes."""

Usd = Annotated[Decimal, Field(gt=0, allow_inf_nan=False)]


def _server_url(value: str) -> str:
    # Never shown: it may hold a password.
    try:
        parts = urlsplit(value)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole or not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("must be an address such as http://prometheus:9090 or https://host/path")
    if "@" in parts.netloc:
        raise ValueError("must not hold a password; put a token into `token_file`")
    if parts.query or parts.fragment:
        raise ValueError("must end with the host, the port or a path, before any ? or #")
    return value


def _from_here(value: Path) -> Path:
    return value.expanduser().absolute()


class ProviderType(StrEnum):
    """The adapters that exist, or will: those that are not in `ADAPTED` only keep their names."""

    LOCAL = "local"
    SIMULATED = "simulated"
    AWS = "aws"
    TOGETHER = "together"
    SSH = "ssh"


ADAPTED = (ProviderType.LOCAL, ProviderType.SIMULATED)
LOCAL_REGION = "local"


class PriceOverride(Model):
    """The operator's own price of an instance type; a bare number is `usd_per_hour`.

    Attributes:
        cluster_usd_per_hour: Price of one machine inside a cluster of several.
    """

    usd_per_hour: Usd | None = None
    cluster_usd_per_hour: Usd | None = None
    root_disk_usd_per_gb_month: Usd | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_number(cls, value: Any) -> Any:
        return {"usd_per_hour": value} if isinstance(value, str | int | Decimal) else value

    def apply(self, offer: Offer) -> Offer:
        """Return the offer at the operator's price, keeping what the provider itself asks."""
        given = self.model_dump(exclude_none=True)
        if "usd_per_hour" in given:
            given["provider_usd_per_hour"] = offer.usd_per_hour
        if "cluster_usd_per_hour" in given:
            asked = offer.cluster_usd_per_hour
            given["provider_cluster_usd_per_hour"] = offer.usd_per_hour if asked is None else asked
        if "root_disk_usd_per_gb_month" in given:
            given["root_disk_price_unknown"] = False
        if "usd_per_hour" in given:
            given["price_is_ceiling"] = False
        return offer.model_copy(update={**given, "source": "settings"}) if given else offer


class ProviderSettings(Model):
    """One account at one provider.

    Attributes:
        type: Which adapter; by default the one of the provider's own name.
        regions: Where it may buy; empty means everywhere the adapter knows.
        prices: Own prices by instance type.
        start_timeout: How long a node may take to be ready; None is the adapter's default.
        calls_per_second: Rate limit of the account, None is the adapter's default.
        boot_seconds: `simulated` only, like the two after it.
    """

    type: ProviderType
    regions: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = ()
    prices: dict[str, PriceOverride] = Field(default_factory=dict)
    start_timeout: InSeconds | None = None
    calls_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    boot_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    settle_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    delete_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @field_validator("type")
    @classmethod
    def _has_adapter(cls, value: ProviderType) -> ProviderType:
        if value not in ADAPTED:
            known = " or ".join(ADAPTED)
            raise ValueError(f"this version has no adapter for {value}; it must be {known}")
        return value

    @field_validator("regions")
    @classmethod
    def _local_is_one_place(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if info.data.get("type") is ProviderType.LOCAL and value not in ((), (LOCAL_REGION,)):
            raise ValueError(f"a provider of type local has one region, {LOCAL_REGION}")
        return value

    @field_validator("start_timeout", "calls_per_second")
    @classmethod
    def _not_local(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("type") is ProviderType.LOCAL:
            raise ValueError("cannot be set for a provider of type local")
        return value

    @field_validator("boot_seconds", "settle_seconds", "delete_seconds")
    @classmethod
    def _only_simulated(cls, value: float | None, info: ValidationInfo) -> float | None:
        kind = info.data.get("type", ProviderType.SIMULATED)
        if value is not None and kind is not ProviderType.SIMULATED:
            raise ValueError(f"is for providers of type simulated, not {kind}")
        return value

    def price(self, offer: Offer) -> Offer:
        """Return an offer with the operator's own price, where one is set.

        It is a price of on-demand machines; spot ones keep the provider's.
        """
        override = self.prices.get(offer.instance_type)
        if override is None or offer.capacity_type is not CapacityType.ON_DEMAND:
            return offer
        return override.apply(offer)


RouterAddress = Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+/?$", max_length=256)]
"""Scheme, host and port: where workers reach a router."""


class RouterSettings(Model):
    """Where the router listens, and where workers reach all of them.

    Attributes:
        addresses: Of all routers, such as `http://10.0.0.5:8000`; by default the one of this host.
        port: 0 runs none in `garrison up`.
        hold_seconds: How long a request waits for a replica.
        token_file: Holds the token without which a router outside this host answers nobody;
            `GARRISON_ROUTER_TOKEN` wins over it.
    """

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    port: int = Field(default=8000, ge=0, le=65535)
    addresses: tuple[RouterAddress, ...] = ()
    hold_seconds: InSeconds = timedelta(seconds=300)
    token_file: Path | None = None

    @property
    def reached_at(self) -> tuple[str, ...]:
        """Addresses of all routers."""
        if self.addresses or not self.port:
            return self.addresses
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        host = everywhere.get(self.host, self.host)
        shown = f"[{host}]" if ":" in host else host
        return (f"http://{shown}:{self.port}",)


class PrometheusSettings(Model):
    """The Prometheus server that scrapes deployments' replicas.

    Attributes:
        url: With any path before `/api/v1`.
        token_file: Holds what it wants to see as a bearer token; read anew at each look.
        timeout_seconds: Of one question; a look at all deployments takes at most two.
    """

    url: Annotated[str, Field(max_length=2048), AfterValidator(_server_url)]
    token_file: Annotated[Path, AfterValidator(_from_here)] | None = None
    timeout_seconds: float = Field(default=5, ge=0.1, le=60, allow_inf_nan=False)


class LoadSettings(Model):
    """Who counts requests besides the router; deployments choose in `autoscale_config.load`."""

    prometheus: PrometheusSettings | None = None


def _named_types(value: Any) -> Any:
    """Give each provider whose name is an adapter's that adapter as its type."""
    if not isinstance(value, dict):
        return value
    known = {kind.value for kind in ProviderType}
    return {
        name: {"type": name, **({} if block is None else block)}
        if name in known and (block is None or isinstance(block, dict))
        else block
        for name, block in value.items()
    }


def _default_providers() -> dict[str, ProviderSettings]:
    kinds = (ProviderType.LOCAL, ProviderType.SIMULATED)
    return {kind.value: ProviderSettings(type=kind) for kind in kinds}


Providers = Annotated[dict[Name, ProviderSettings], BeforeValidator(_named_types)]


class SettingsFile(Model):
    """What `garrison.yaml` may say."""

    installation: str | None = Field(default=None, pattern=INSTALLATION_PATTERN)
    owner: str | None = Field(default=None, min_length=1, max_length=128)
    public_key: str | None = Field(default=None, min_length=1, max_length=256)
    log_dir: Path | None = None
    namespace: str | None = Field(default=None, min_length=1, max_length=255)
    limits: ShapeLimits = ShapeLimits()
    providers: Providers = Field(default_factory=_default_providers, min_length=1)
    models: Models = Field(default_factory=dict)
    router: RouterSettings = RouterSettings()
    load: LoadSettings = LoadSettings()
    watch_interval: InSeconds = timedelta(seconds=15)
    watch_interval_busy: InSeconds = timedelta(seconds=2)
    load_interval: InSeconds = timedelta(seconds=10)
    load_interval_busy: InSeconds = timedelta(seconds=2)
    heartbeat_timeout: HeartbeatTimeout = timedelta(seconds=30)
    quote_valid: InMinutes = timedelta(minutes=15)
    deadman_hours: float = Field(default=6, gt=0, le=24 * 30, allow_inf_nan=False)


class Settings(Model):
    """Everything that can be set, resolved.

    Attributes:
        data_dir: Where an installation keeps its files; absolute, perhaps not there yet.
        config: The file that was read, None when there is none.
        installation: As set; None means the id kept in the data directory, see
            `installation_id`.
        owner: Who owns what is created here.
        public_key: The sealing key as set, None means the one that workers publish.
        namespace: Temporal namespace as set here, None leaves it to Temporal's own settings.
        models: How models are served, by name or pattern; what deployments may name.
        router_token: What routers want to see before they answer, None for nothing.
        router_secret: By which routers know workers, as set, see `router_secret`.
        watch_interval: Pause between two passes over a provider's machines.
        watch_interval_busy: The same while an owner is in transition.
        load_interval: Pause between two looks at deployments' traffic.
        load_interval_busy: The same while requests wait for a replica.
        heartbeat_timeout: How long after a worker died its calls are given to another.
        quote_valid: How long a quote can be launched.
    """

    data_dir: Path
    log_dir: Path
    config: Path | None = None
    installation: str | None = None
    owner: str
    public_key: str | None = None
    namespace: str | None = None
    limits: ShapeLimits = ShapeLimits()
    providers: dict[str, ProviderSettings] = Field(default_factory=_default_providers)
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    router: RouterSettings = RouterSettings()
    router_token: SecretStr | None = None
    router_secret: SecretStr | None = None
    load: LoadSettings = LoadSettings()
    watch_interval: timedelta = timedelta(seconds=15)
    watch_interval_busy: timedelta = timedelta(seconds=2)
    load_interval: timedelta = timedelta(seconds=10)
    load_interval_busy: timedelta = timedelta(seconds=2)
    heartbeat_timeout: timedelta = timedelta(seconds=30)
    quote_valid: timedelta = timedelta(minutes=15)
    deadman_hours: float = 6

    @property
    def deadman(self) -> timedelta:
        """How long an owner waits for word of its machines before it asks."""
        return timedelta(hours=self.deadman_hours)

    def provider_dir(self, name: str) -> Path:
        """Return where a provider that lives on this machine keeps everything."""
        return self.data_dir / "providers" / name

    def simulated_cloud(self, name: str) -> Path:
        """Return the file that is the cloud of a provider of type `simulated`."""
        usual = name == ProviderType.SIMULATED
        return self.data_dir / ("simulated.db" if usual else f"simulated-{name}.db")


class _Environment(BaseSettings):
    """The `GARRISON_*` variables; an empty one counts as unset."""

    model_config = SettingsConfigDict(
        env_prefix="GARRISON_", env_ignore_empty=True, extra="ignore", frozen=True
    )

    data_dir: Path | None = None
    config: Path | None = None
    installation: str | None = None
    log_dir: Path | None = None
    namespace: str | None = None
    public_key: str | None = None
    user: str | None = None
    router_token: SecretStr | None = None
    router_secret: SecretStr | None = None


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this process.

    Args:
        environ: The environment; the process's own by default.

    Raises:
        InvalidSpec: With every mistake in the file or the environment. A file that
            `GARRISON_CONFIG` names must exist; `garrison.yaml` in the data directory need not.
    """
    env = _read_environment(os.environ if environ is None else environ)
    data_dir = _absolute(env.data_dir or default_data_dir())
    config, file = _read_file(env.config, data_dir)
    installation = env.installation or file.installation
    _check_installation(env.installation, "GARRISON_INSTALLATION")
    return Settings(
        data_dir=data_dir,
        log_dir=_absolute(env.log_dir or file.log_dir or data_dir / "logs"),
        config=config,
        installation=installation,
        owner=env.user or file.owner or _login_name(),
        public_key=env.public_key or file.public_key,
        namespace=env.namespace or file.namespace,
        router_token=env.router_token or _token_in(file.router.token_file),
        router_secret=env.router_secret,
        **{name: getattr(file, name) for name in _FROM_FILE},
    )


_FROM_FILE = (
    "limits",
    "providers",
    "models",
    "router",
    "load",
    "watch_interval",
    "watch_interval_busy",
    "load_interval",
    "load_interval_busy",
    "heartbeat_timeout",
    "quote_valid",
    "deadman_hours",
)


def _token_in(path: Path | None) -> SecretStr | None:
    """Return the token that a file holds.

    Raises:
        InvalidSpec: It cannot be read, is empty, or other users can read it.
    """
    if path is None:
        return None
    try:
        found = path.expanduser().read_text(encoding="utf-8").strip()
        if path.expanduser().stat().st_mode & 0o077:
            raise InvalidSpec(f"{path} can be read by other users; run: chmod 600 {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"the router's {path} cannot be read: {error}") from None
    if not found or not found.isascii() or not found.isprintable():
        raise InvalidSpec(f"the router's {path} does not hold a token of printable letters")
    return SecretStr(found)


def default_data_dir() -> Path:
    """Return the data directory of who names none."""
    return Path(platformdirs.user_data_dir("garrison"))


def installation_id(settings: Settings, *, create: bool) -> str:
    """Return the id that every machine of this installation is tagged with.

    Args:
        settings: What was set, and where the data directory is.
        create: Make one if there is none; for workers, which buy machines.

    Raises:
        NotFound: There is none, and `create` is False.
        InvalidSpec: The stored id is damaged. It is never replaced, since machines may carry it.
    """
    if settings.installation is not None:
        return settings.installation
    path = settings.data_dir / "installation"
    if create and not path.exists():
        make_folder(path.parent)
        create_once(path, secrets.token_hex(6) + "\n")
    try:
        found = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise NotFound(
            f"there is no installation in {settings.data_dir}; `garrison up` makes one"
        ) from None
    except (OSError, UnicodeDecodeError):
        found = ""
    if not re.fullmatch(INSTALLATION_PATTERN, found):
        raise InvalidSpec(f"{path} does not hold an installation id")
    return found


def router_secret(settings: Settings) -> str:
    """Return the secret by which routers know that it is a worker who tells and asks them.

    As set by `GARRISON_ROUTER_SECRET`, else the one kept in the data directory, made at first need;
    workers and routers must have the same.

    Raises:
        InvalidSpec: The stored one cannot be read, or other users can read it.
    """
    if settings.router_secret is not None:
        return settings.router_secret.get_secret_value()
    path = settings.data_dir / "keys" / "router-secret"
    if not path.exists():
        make_folder(path.parent)
        create_once(path, secrets.token_hex(32) + "\n")
    found = _token_in(path)
    assert found is not None
    return found.get_secret_value()


def _read_environment(environ: Mapping[str, str]) -> _Environment:
    class FromMapping(EnvSettingsSource):
        def _load_env_vars(self) -> Mapping[str, str | None]:
            return {name.lower(): value for name, value in environ.items() if value}

    class Given(_Environment):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: Any, **__: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (FromMapping(settings_cls),)

    return Given()


def _read_file(named: Path | None, data_dir: Path) -> tuple[Path | None, SettingsFile]:
    path = _absolute(named) if named is not None else data_dir / "garrison.yaml"
    try:
        with open_regular(path) as settings_file:
            data = settings_file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        if named is not None:
            raise InvalidSpec(f"GARRISON_CONFIG names {path}, which does not exist") from None
        return None, SettingsFile()
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be read: {error.strerror}") from None
    source = str(path)
    text = decode(data, source)
    if not _says_anything(text):
        return path, SettingsFile()
    document = load_document(text, source)
    secret = ("env", "command")
    return path, bind(document, SettingsFile, verbatim=_environments(document), secret=secret)


def _environments(document: Document) -> list[KeyPath]:
    """Return where variables stand, whose values are texts whatever they look like."""
    models = document.value.get("models")
    return [("models", name, "env") for name in models] if isinstance(models, dict) else []


def _says_anything(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines())
    return any(line and not line.startswith("#") for line in lines)


def _check_installation(value: str | None, variable: str) -> None:
    if value is not None and not re.fullmatch(INSTALLATION_PATTERN, value):
        message = "must be 1 to 32 letters, digits or '-', first a letter or digit"
        raise InvalidSpec(f"{variable} is not valid", problems=(Problem(variable, message),))


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # A container may run under a user id that has no name.
        return f"uid-{os.getuid()}"
