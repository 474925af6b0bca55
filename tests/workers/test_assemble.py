"""From settings to parts: keys made once, adapters chosen, what cannot be served refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from garrison.catalog.loader import load_offers
from garrison.errors import InvalidSpec
from garrison.models.offer import CapacityType, OfferQuery
from garrison.providers.local.provider import REGION, LocalProvider
from garrison.sealing import read_public_key, seal_env
from garrison.settings import (
    ADAPTED,
    LOCAL_REGION,
    ProviderSettings,
    ProviderType,
    Settings,
    load_settings,
)
from garrison.workers.assemble import _ADAPTERS, build_parts, load_or_create_ssh_key, queue_names
from garrison.workers.main import Parts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def opened() -> AsyncIterator[list[Parts]]:
    parts: list[Parts] = []
    yield parts
    for each in parts:
        for provider in each.providers.values():
            if isinstance(provider, LocalProvider):
                await provider.aclose()


def _settings(folder: Path, **providers: Any) -> Settings:
    settings = load_settings({"GARRISON_DATA_DIR": str(folder)})
    return settings.model_copy(update={"providers": providers}) if providers else settings


async def test_the_parts_have_the_configured_adapters_and_the_keys(
    folder: Path, opened: list[Parts]
) -> None:
    parts = build_parts(_settings(folder))
    opened.append(parts)

    assert set(parts.providers) == {"local", "simulated"}
    assert parts.public_key == read_public_key(folder)
    assert parts.authorized_keys[0].startswith("ssh-ed25519 ")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert parts.queues is None


async def test_a_second_worker_of_the_directory_has_the_same_keys(
    folder: Path, opened: list[Parts]
) -> None:
    first, second = build_parts(_settings(folder)), build_parts(_settings(folder))
    opened += [first, second]

    assert first.authorized_keys == second.authorized_keys
    assert first.public_key == second.public_key


async def test_what_a_client_seals_and_a_secret_file_are_opened(
    folder: Path, opened: list[Parts]
) -> None:
    parts = build_parts(_settings(folder))
    opened.append(parts)
    (folder / "secrets").mkdir()
    (folder / "secrets" / "hf").write_text("hf_123\n")
    assert parts.public_key is not None

    sealed = seal_env(parts.public_key, {"TOKEN": "s3cret", "HF": "secret:hf"})

    assert parts.open_env(sealed) == {"TOKEN": "s3cret", "HF": "hf_123"}


async def test_the_settings_of_a_simulated_provider_reach_it(
    folder: Path, opened: list[Parts]
) -> None:
    chosen = ProviderSettings(
        type=ProviderType.SIMULATED,
        regions=("moon",),
        settle_seconds=7,
        calls_per_second=50,
        start_timeout=timedelta(seconds=9),
    )
    parts = build_parts(_settings(folder, paper=chosen))
    opened.append(parts)

    facts = parts.providers["paper"].facts
    offers = await parts.providers["paper"].list_offers(OfferQuery())
    assert (facts.name, facts.regions, facts.calls_per_second) == ("paper", ("moon",), 50)
    assert (facts.settle, facts.start_timeout) == (timedelta(seconds=7), timedelta(seconds=9))
    assert {offer.region for offer in offers} == {"moon"}


async def test_a_paper_cloud_named_after_a_real_one_sells_its_machines(
    folder: Path, opened: list[Parts]
) -> None:
    chosen = ProviderSettings(type=ProviderType.SIMULATED, regions=("us-east-1",))
    parts = build_parts(_settings(folder, aws=chosen, paper=chosen))
    opened.append(parts)

    aws = await parts.providers["aws"].list_offers(OfferQuery(capacity_type=CapacityType.ON_DEMAND))
    every = await parts.providers["paper"].list_offers(OfferQuery())

    real = [o for o in load_offers() if o.provider == "aws" and o.usd_per_hour is not None]
    assert {o.instance_type for o in aws} == {o.instance_type for o in real if o.whole_machine}
    assert {o.instance_type for o in aws} < {o.instance_type for o in every}
    (g5,) = [o for o in aws if o.instance_type == "g5.2xlarge"]
    assert (g5.provider, g5.region, g5.usd_per_hour) == ("aws", "us-east-1", Decimal("1.212"))
    assert g5.simulated


def test_settings_take_just_the_adapters_and_the_local_region_that_there_are() -> None:
    assert (tuple(_ADAPTERS), REGION) == (ADAPTED, LOCAL_REGION)


async def test_only_the_chosen_queues_are_served(folder: Path, opened: list[Parts]) -> None:
    parts = build_parts(_settings(folder), ["watch", "provider-local"])
    opened.append(parts)

    served = [name for name in queue_names(parts.settings) if parts.serves(name)]
    assert served == ["watch", "provider-local"]


@pytest.mark.parametrize(("queues", "named"), [(["provider-moon"], "provider-moon"), ([], "none")])
def test_a_queue_that_does_not_exist_is_refused_with_those_that_do(
    queues: list[str], named: str, folder: Path
) -> None:
    with pytest.raises(InvalidSpec, match=rf"no task queue {named}; .*provider-simulated"):
        build_parts(_settings(folder), queues)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("file", id="a file"),
        pytest.param("file/below", id="below a file"),
        pytest.param("x" * 300, id="a name that is too long"),
        pytest.param("/proc/garrison", id="where nothing can be made"),
    ],
)
def test_a_data_directory_that_cannot_be_is_refused_with_the_remedy(
    place: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    settings = _settings(tmp_path).model_copy(update={"data_dir": tmp_path / place})

    with pytest.raises(InvalidSpec, match=r"cannot be used: .*--data-dir"):
        build_parts(settings)


MAKERS = """
import multiprocessing
import os, sys
from pathlib import Path
from garrison.workers.assemble import load_or_create_ssh_key

def make(gate):
    gate.wait()
    found = load_or_create_ssh_key(Path(sys.argv[1])).get_fingerprint()
    os.write(1, (found + "\\n").encode())  # in one piece, as others write too

fork = multiprocessing.get_context("fork")  # three that have imported everything
gate = fork.Barrier(3)
makers = [fork.Process(target=make, args=(gate,)) for _ in range(3)]
for maker in makers:
    maker.start()
for maker in makers:
    maker.join()
"""
"""Processes that make the key of a data directory at the same moment."""


def test_the_ssh_key_is_the_same_for_all_who_make_it_at_once(folder: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", MAKERS, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )

    fingerprint = load_or_create_ssh_key(folder).get_fingerprint()
    assert made.stdout.splitlines() == [fingerprint] * 3
    assert stat.S_IMODE((folder / "keys" / "ssh_ed25519").stat().st_mode) == 0o600
    assert sorted(os.listdir(folder / "keys")) == ["ssh_ed25519", "ssh_ed25519.pub"]


def test_an_ssh_key_that_others_can_read_is_refused(folder: Path) -> None:
    load_or_create_ssh_key(folder)
    (folder / "keys" / "ssh_ed25519").chmod(0o644)

    with pytest.raises(InvalidSpec, match="chmod 600"):
        load_or_create_ssh_key(folder)


def test_a_damaged_ssh_key_is_refused_and_kept(folder: Path) -> None:
    load_or_create_ssh_key(folder)
    path = folder / "keys" / "ssh_ed25519"
    path.write_text("not a key")

    with pytest.raises(InvalidSpec, match="usable SSH key"):
        load_or_create_ssh_key(folder)

    assert path.read_text() == "not a key"


async def test_an_account_is_opened_for_another_installation_by_a_valid_id(
    folder: Path, opened: list[Parts]
) -> None:
    parts = build_parts(_settings(folder))
    opened.append(parts)

    async with parts.provider_for("local", "another-one") as account:
        assert account.facts == parts.providers["local"].facts
    for damaged in ("", "-x", "a b", "x" * 33, "a\n"):
        with pytest.raises(InvalidSpec):
            async with parts.provider_for("local", damaged):
                pass
