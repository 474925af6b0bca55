"""Finding and reaching the Temporal Service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.service import RetryConfig, RPCError

from garrison.errors import InvalidSpec, NotFound, ServiceUnreachable, Unsupported
from garrison.models.service import ProcessRecord, UpRecord
from garrison.service import (
    ServiceAddress,
    connect,
    embedded_namespace,
    is_alive,
    missing_search_attributes,
    raise_retention,
    register_search_attributes,
    retention_of,
    running_server,
    service_address,
)
from garrison.settings import Settings, load_settings
from garrison.workflows.visibility import ALL_KEYS

NOT_A_PROCESS = 2**22 + 1  # above the greatest process id of Linux


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"GARRISON_DATA_DIR": str(tmp_path)})


@pytest.fixture
def no_profile(tmp_path: Path) -> dict[str, str]:
    """An environment that hides the profiles of whoever runs the tests."""
    return {"TEMPORAL_CONFIG_FILE": str(tmp_path / "no-such.toml")}


def _this_process() -> ProcessRecord:
    return ProcessRecord(pid=os.getpid(), created=psutil.Process().create_time())


def _record_up(folder: Path, **changes: Any) -> None:
    fields = {
        "server": _this_process(),
        "up": _this_process(),
        "host": "127.0.0.1",
        "port": 7999,
        "ui_port": 8999,
        "namespace": "default",
        "started_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    (folder / "up.json").write_text(UpRecord(**(fields | changes)).model_dump_json())


def _where(settings: Settings, environ: Mapping[str, str]) -> tuple[str, str, str]:
    found = service_address(settings, environ)
    return found.target, found.namespace, found.source


def test_without_anything_it_is_the_usual_address(
    settings: Settings, no_profile: dict[str, str]
) -> None:
    assert _where(settings, no_profile) == ("localhost:7233", "default", "default")


def test_the_server_of_the_up_that_runs_is_found(
    settings: Settings, no_profile: dict[str, str]
) -> None:
    _record_up(settings.data_dir, namespace="mine")

    assert _where(settings, no_profile) == ("127.0.0.1:7999", "mine", "garrison up")


def test_an_address_in_the_environment_wins_over_the_up_that_runs(
    settings: Settings, no_profile: dict[str, str]
) -> None:
    _record_up(settings.data_dir)
    environ = {**no_profile, "TEMPORAL_ADDRESS": "far:7233", "TEMPORAL_NAMESPACE": "theirs"}

    assert _where(settings, environ) == ("far:7233", "theirs", "TEMPORAL_ADDRESS")


def test_a_profile_gives_address_namespace_and_api_key(tmp_path: Path, settings: Settings) -> None:
    _record_up(settings.data_dir)
    file = tmp_path / "temporal.toml"
    file.write_text('[profile.prod]\naddress = "cloud:7233"\nnamespace = "a.b"\napi_key = "k3y"\n')
    environ = {"TEMPORAL_CONFIG_FILE": str(file), "TEMPORAL_PROFILE": "prod"}

    found = service_address(settings, environ)

    assert (found.target, found.namespace, found.source) == ("cloud:7233", "a.b", "profile")
    assert found.options["api_key"] == "k3y"
    assert "k3y" not in repr(found)


def test_an_api_key_without_an_address_is_not_given_to_the_local_server(
    settings: Settings, no_profile: dict[str, str]
) -> None:
    _record_up(settings.data_dir)

    found = service_address(settings, {**no_profile, "TEMPORAL_API_KEY": "k3y"})

    assert found.options == {}


def test_the_namespace_of_the_settings_wins(settings: Settings, no_profile: dict[str, str]) -> None:
    _record_up(settings.data_dir, namespace="recorded")
    mine = settings.model_copy(update={"namespace": "set"})
    environ = {**no_profile, "TEMPORAL_NAMESPACE": "variable"}

    assert service_address(mine, environ).namespace == "set"
    assert service_address(settings, environ).namespace == "variable"
    assert embedded_namespace(mine, environ) == "set"
    assert embedded_namespace(settings, environ) == "variable"


def test_up_does_not_take_the_namespace_of_a_service_elsewhere(
    settings: Settings, no_profile: dict[str, str]
) -> None:
    environ = {**no_profile, "TEMPORAL_ADDRESS": "cloud:7233", "TEMPORAL_NAMESPACE": "a.b"}

    assert embedded_namespace(settings, environ) == "default"


@pytest.mark.parametrize("variable", ["TEMPORAL_ADDRESS", "TEMPORAL_PROFILE"])
def test_an_empty_variable_counts_as_unset(
    variable: str, settings: Settings, no_profile: dict[str, str]
) -> None:
    assert _where(settings, {**no_profile, variable: ""})[2] == "default"


def test_a_profile_that_does_not_exist_is_refused(
    settings: Settings, no_profile: dict[str, str]
) -> None:
    with pytest.raises(InvalidSpec, match="'nope' not found"):
        service_address(settings, {**no_profile, "TEMPORAL_PROFILE": "nope"})


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"server": ProcessRecord(pid=NOT_A_PROCESS, created=0)}, id="no process"),
        pytest.param(
            {"server": ProcessRecord(pid=os.getpid(), created=1)}, id="another under its number"
        ),
        pytest.param({"stopping": True}, id="it was told to end"),
    ],
)
def test_a_record_of_what_does_not_serve_is_not_followed(
    changes: dict[str, Any], settings: Settings
) -> None:
    _record_up(settings.data_dir, **changes)

    assert running_server(settings.data_dir) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"port": 7}', b"\xff\xfe", b"null"])
def test_a_damaged_record_counts_as_none(content: bytes, settings: Settings) -> None:
    (settings.data_dir / "up.json").write_bytes(content)

    assert running_server(settings.data_dir) is None


def test_this_process_is_alive_and_an_earlier_one_of_its_number_is_not() -> None:
    record = _this_process()

    assert is_alive(record)
    assert not is_alive(record.replace(created=record.created - 60))


@pytest.mark.parametrize(
    ("target", "loopback"),
    [
        ("localhost:7233", True),
        ("127.0.0.1:7233", True),
        ("127.9.9.9:1", True),
        ("[::1]:7233", True),
        ("10.0.0.1:7233", False),
        ("localhost.example.org:7233", False),
        ("far", False),
    ],
)
def test_loopback_is_told_from_the_rest(target: str, loopback: bool) -> None:
    assert ServiceAddress(target, "default", "default").on_loopback is loopback


async def test_nobody_at_the_address_names_it_and_the_remedy() -> None:
    with socket.socket() as unheard:  # bound and not listening: nobody else can come
        unheard.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{unheard.getsockname()[1]}"

        with pytest.raises(ServiceUnreachable, match=f"{target}.*garrison up"):
            await connect(ServiceAddress(target, "default", "default"))


class Door:
    """A way to a server that can be shut."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._streams: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Door:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.target = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for stream in self._streams:
            stream.close()

    async def _serve(self, coming: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        answer, onward = await asyncio.open_connection(self._host, self._port)
        self._streams += [back, onward]
        await asyncio.gather(_pump(coming, onward), _pump(answer, back))


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()


async def test_a_call_that_is_tried_again_writes_nothing_of_its_own(
    client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    fast = {"retry_config": RetryConfig(initial_interval_millis=1, max_interval_millis=2)}
    async with Door(client.service_client.config.target_host) as door:
        waiting = await connect(ServiceAddress(door.target, "default", "default", fast))

    with pytest.raises(RPCError, match="connect"):
        await waiting.count_workflows()

    assert capfd.readouterr() == ("", "")


async def test_a_listener_that_never_speaks_is_given_up_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()

        with pytest.raises(ServiceUnreachable, match="did not answer in 1 s"):
            await connect(
                ServiceAddress(target, "default", "TEMPORAL_ADDRESS"),
                timeout=timedelta(seconds=1),
            )

    assert time.monotonic() - began < 5


@pytest.mark.parametrize("target", ["http://here:7233", "x y:1"])
async def test_what_is_no_address_is_refused(target: str) -> None:
    with pytest.raises((InvalidSpec, ServiceUnreachable)):
        await connect(ServiceAddress(target, "default", "TEMPORAL_ADDRESS"))


@pytest.mark.parametrize(
    ("name", "kept", "raised", "after"),
    [
        ("kept-short", 1, True, 90),
        ("kept-as-wanted", 90, False, 90),
        ("kept-long", 400, False, 400),
    ],
)
async def test_a_retention_is_raised_and_never_lowered(
    client: Client, name: str, kept: int, raised: bool, after: int
) -> None:
    made = RegisterNamespaceRequest(namespace=name)
    made.workflow_execution_retention_period.FromTimedelta(timedelta(days=kept))
    await client.workflow_service.register_namespace(made)
    target = client.service_client.config.target_host
    other = await connect(ServiceAddress(target, name, "default"))

    assert await raise_retention(other) is raised
    assert await retention_of(other) == timedelta(days=after)


async def test_the_retention_of_a_namespace_that_is_not_there_is_not_raised(client: Client) -> None:
    target = client.service_client.config.target_host
    nowhere = await connect(ServiceAddress(target, "nowhere", "default"))

    with pytest.raises(NotFound, match="nowhere"):
        await raise_retention(nowhere)


async def test_search_attributes_are_registered_once(client: Client) -> None:
    extra = SearchAttributeKey.for_keyword("GarrisonTestExtra")
    keys = (*ALL_KEYS, extra)

    assert await missing_search_attributes(client, keys) == (extra,)
    assert await register_search_attributes(client, keys) == (extra,)
    assert await register_search_attributes(client, keys) == ()


async def test_a_search_attribute_of_another_type_is_not_taken_for_ours(client: Client) -> None:
    other = SearchAttributeKey.for_float("GarrisonKind")

    with pytest.raises(Unsupported, match="GarrisonKind"):
        await register_search_attributes(client, (other,))
