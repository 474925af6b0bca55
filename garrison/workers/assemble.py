"""From settings to the parts of a worker: keys, adapters, the data directory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncssh

from garrison.catalog.loader import load_offers
from garrison.errors import InvalidSpec
from garrison.models.offer import Offer
from garrison.models.problems import shown
from garrison.models.queues import LOAD_QUEUE, TASK_QUEUE, WATCH_QUEUE, provider_queue
from garrison.private_files import create_once
from garrison.providers.base import Provider
from garrison.providers.local.provider import LocalProvider
from garrison.providers.simulated.provider import SimulatedProvider
from garrison.sealing import load_or_create_key_pair, open_env
from garrison.settings import (
    INSTALLATION_PATTERN,
    ProviderSettings,
    ProviderType,
    Settings,
    installation_id,
    router_secret,
)
from garrison.workers.data_dir import prepare_data_dir
from garrison.workers.main import Parts


def build_parts(settings: Settings, queues: Iterable[str] | None = None) -> Parts:
    """Return what a worker is built from, making keys and an installation id at first need.

    Args:
        settings: Of this process.
        queues: Which queues to serve, None for all.

    Raises:
        InvalidSpec: The data directory cannot be used, a key is damaged, a queue does not exist.
    """
    served = None if queues is None else _known_queues(settings, queues)
    prepare_data_dir(settings.data_dir)
    installation = installation_id(settings, create=True)
    keys = load_or_create_key_pair(settings.data_dir)
    ssh_key = load_or_create_ssh_key(settings.data_dir)
    secrets = settings.data_dir / "secrets"

    def adapter(name: str, installation: str) -> Provider:
        chosen = settings.providers[name]
        return _ADAPTERS[chosen.type](name, chosen, settings, installation, ssh_key)

    return Parts(
        settings=settings,
        providers={name: adapter(name, installation) for name in settings.providers},
        open_env=lambda env: open_env(keys, env, secrets),
        authorized_keys=(_public_line(ssh_key),),
        public_key=keys.public_text,
        queues=served,
        installation=installation,
        provider_for=lambda name, other: _opened(adapter, name, other),
        routers=settings.router.reached_at,
        router_secret=router_secret(settings),
        router_token=settings.router_token.get_secret_value() if settings.router_token else None,
    )


@contextlib.asynccontextmanager
async def _opened(
    adapter: Callable[[str, str], Provider], name: str, installation: str
) -> AsyncIterator[Provider]:
    if not re.fullmatch(INSTALLATION_PATTERN, installation):
        raise InvalidSpec(f"{shown(installation)} is no id of an installation")
    provider = adapter(name, installation)
    try:
        yield provider
    finally:
        if isinstance(provider, LocalProvider):
            await provider.aclose()


def queue_names(settings: Settings) -> tuple[str, ...]:
    """Return every task queue that workers of these settings can serve."""
    providers = (provider_queue(name) for name in settings.providers)
    return (TASK_QUEUE, WATCH_QUEUE, LOAD_QUEUE, *providers)


def load_or_create_ssh_key(data_dir: Path) -> asyncssh.SSHKey:
    """Return the key by which the installation logs in to nodes, making it at first need.

    Safe between processes: all of them get the key of whichever was first. It is
    `keys/ssh_ed25519` (0600); its public half stands beside it.

    Raises:
        InvalidSpec: The stored key is damaged, or other users can read it.
    """
    path = data_dir / "keys" / "ssh_ed25519"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        made = asyncssh.generate_private_key("ssh-ed25519", comment="garrison")
        create_once(path, made.export_private_key().decode())
    if path.stat().st_mode & 0o077:
        raise InvalidSpec(f"{path} can be read by other users; run: chmod 600 {path}")
    try:
        key = asyncssh.read_private_key(path)
    except (OSError, asyncssh.KeyImportError) as error:
        raise InvalidSpec(f"{path} does not hold a usable SSH key: {error}") from None
    create_once(path.with_suffix(".pub"), key.export_public_key().decode())
    return key


def _known_queues(settings: Settings, queues: Iterable[str]) -> frozenset[str]:
    chosen, known = frozenset(queues), queue_names(settings)
    unknown = sorted(chosen - set(known))
    if unknown or not chosen:
        named = ", ".join(unknown) or "none"
        raise InvalidSpec(f"there is no task queue {named}; there are {', '.join(known)}")
    return chosen


def _local(
    name: str, chosen: ProviderSettings, settings: Settings, installation: str, key: asyncssh.SSHKey
) -> Provider:
    return LocalProvider(
        settings.provider_dir(name), installation=installation, installation_key=key, name=name
    )


def _simulated(
    name: str, chosen: ProviderSettings, settings: Settings, installation: str, key: asyncssh.SSHKey
) -> Provider:
    given: dict[str, Any] = {
        "regions": chosen.regions or None,
        "boot": _seconds(chosen.boot_seconds),
        "settle": _seconds(chosen.settle_seconds),
        "delete_takes": _seconds(chosen.delete_seconds),
        "calls_per_second": chosen.calls_per_second,
        "start_timeout": chosen.start_timeout,
    }
    return SimulatedProvider(
        settings.simulated_cloud(name),
        installation=installation,
        name=name,
        offers=_sold_by(name),
        **{option: value for option, value in given.items() if value is not None},
    )


def _sold_by(name: str) -> tuple[Offer, ...]:
    """Return a paper cloud's catalogue: of the real one after which it is named, else of all."""
    own = tuple(offer for offer in load_offers() if offer.provider == name and offer.whole_machine)
    return own or load_offers()


Adapter = Callable[[str, ProviderSettings, Settings, str, asyncssh.SSHKey], Provider]
_ADAPTERS: Mapping[ProviderType, Adapter] = {
    ProviderType.LOCAL: _local,
    ProviderType.SIMULATED: _simulated,
}


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _public_line(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().strip()
