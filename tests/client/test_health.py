"""What `doctor` sees of a service."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client

from garrison.client.health import check_service, server_version
from garrison.models.service import Check, CheckStatus
from garrison.settings import ProviderSettings, ProviderType, Settings, load_settings


@pytest.fixture
def settings(tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TEMPORAL_ADDRESS", client.service_client.config.target_host)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    nobodys = {"nobodys": ProviderSettings(type=ProviderType.SIMULATED)}
    return load_settings({"GARRISON_DATA_DIR": str(tmp_path)}).model_copy(
        update={"providers": nobodys}
    )


def _by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


async def test_what_nobody_serves_is_named_with_the_remedy(settings: Settings) -> None:
    found = _by_name(await check_service(settings))

    assert found["service"].status is CheckStatus.OK
    assert found["search attributes"].status is CheckStatus.OK
    for name in ("queue provider-nobodys", "watch nobodys", "sealing key"):
        assert found[name].status is CheckStatus.FAIL
        assert "garrison up" in (found[name].remedy or "")


async def test_a_key_in_the_settings_is_a_key(settings: Settings) -> None:
    found = _by_name(await check_service(settings.model_copy(update={"public_key": "given"})))

    assert found["sealing key"].status is CheckStatus.OK


async def test_a_short_retention_is_noted(settings: Settings) -> None:
    found = _by_name(await check_service(settings))

    assert found["namespace"].status is CheckStatus.NOTE
    assert "90 days" in (found["namespace"].remedy or "")


async def test_nothing_more_is_asked_of_a_namespace_that_is_not_there(
    settings: Settings,
) -> None:
    checks = await check_service(settings.model_copy(update={"namespace": "nowhere"}))

    assert [(check.name, str(check.status)) for check in checks] == [
        ("service", "ok"),
        ("namespace", "fail"),
    ]


async def test_the_version_of_the_server_is_known(settings: Settings) -> None:
    version = await server_version(settings)

    assert version is not None
    assert version.startswith("1.")
