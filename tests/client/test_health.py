"""What `doctor` sees of a service."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesResponse
from temporalio.api.workflowservice.v1 import DescribeNamespaceResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from garrison import service
from garrison.client.health import check_service, judge_watch, server_version, set_up
from garrison.models.observation import WatchReport, WatchTrouble
from garrison.models.service import Check, CheckStatus
from garrison.service import connect_service
from garrison.settings import ProviderSettings, ProviderType, Settings, load_settings
from garrison.workers.service import check_namespace


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

    assert found["namespace"].status is CheckStatus.OK
    assert found["retention"].status is CheckStatus.NOTE
    assert "after 1 day" in found["retention"].detail
    assert "garrison doctor --register" in (found["retention"].remedy or "")


async def test_registering_makes_all_that_workers_ask_for(settings: Settings) -> None:
    fresh = settings.model_copy(update={"namespace": "made-by-doctor"})

    first = await check_service(fresh, register=True)
    again = _by_name(await check_service(fresh, register=True))

    parts = ["service", "namespace", "retention", "search attributes"]
    assert [(check.name, str(check.status)) for check in first] == [(name, "ok") for name in parts]
    assert _by_name(first)["namespace"].detail == "made-by-doctor, made now"
    assert again["namespace"].detail == "made-by-doctor"
    assert again["retention"].detail == "ended clusters are kept for 90 days"
    assert again["search attributes"].detail == "all 10 are registered"
    await check_namespace(await connect_service(fresh))  # raises where a worker would not start


class _ServiceThatRefuses:
    """A namespace of somebody else's service, which lets itself be read."""

    namespace = "theirs.a1b2c"

    def __init__(self, status: RPCStatusCode) -> None:
        self._status = status
        self.workflow_service = self.operator_service = self

    async def describe_namespace(self, _: Any, **__: Any) -> DescribeNamespaceResponse:
        found = DescribeNamespaceResponse()
        found.config.workflow_execution_retention_ttl.FromTimedelta(timedelta(hours=36))
        return found

    async def list_search_attributes(self, _: Any) -> ListSearchAttributesResponse:
        return ListSearchAttributesResponse()

    async def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise RPCError("Request unauthorized.", self._status, b"")

    update_namespace = add_search_attributes = _refuse


@pytest.mark.parametrize("status", [RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED])
async def test_what_a_service_refuses_to_set_up_is_told_with_the_remedy(
    status: RPCStatusCode,
) -> None:
    theirs = cast(Client, _ServiceThatRefuses(status))

    retention, attributes = await set_up(theirs)

    for check in (retention, attributes):
        assert check.status is CheckStatus.FAIL
        assert "refused" in check.detail
        assert "Request unauthorized." in check.detail
        assert "Temporal Cloud" in (check.remedy or "")
    assert "90 days" in (retention.remedy or "")
    assert "GarrisonHourlyUsd (Double)" in (attributes.remedy or "")


async def test_no_answer_is_no_refusal() -> None:
    away = cast(Client, _ServiceThatRefuses(RPCStatusCode.UNAVAILABLE))

    with pytest.raises(RPCError, match="unauthorized"):
        await set_up(away)


async def test_nothing_more_is_asked_of_a_namespace_that_is_not_there(
    settings: Settings,
) -> None:
    checks = await check_service(settings.model_copy(update={"namespace": "nowhere"}))

    assert [(check.name, str(check.status)) for check in checks] == [
        ("service", "ok"),
        ("namespace", "fail"),
    ]


@pytest.mark.parametrize("name", ["ü", "a\tb", "x" * 300], ids=["ü", "a tab", "too long"])
@pytest.mark.parametrize("register", [True, False])
async def test_a_name_that_no_namespace_can_have_is_a_mistake_of_the_input(
    settings: Settings, name: str, register: bool
) -> None:
    [check] = await check_service(
        settings.model_copy(update={"namespace": name}), register=register
    )

    assert (check.status, check.invalid, check.unreachable) == (CheckStatus.FAIL, True, False)
    assert "give another with GARRISON_NAMESPACE" in check.detail


@pytest.mark.parametrize("register", [True, False])
async def test_a_name_that_the_service_itself_refuses_is_one_too(
    settings: Settings, register: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server's own limit is above ours.
    monkeypatch.setattr(service, "_NAMESPACE", re.compile(".+"))
    longer = settings.model_copy(update={"namespace": "x" * 1001})

    *_, check = await check_service(longer, register=register)

    assert (check.name, check.invalid, check.unreachable) == ("namespace", True, False)
    assert "length exceeds limit" in check.detail
    assert "GARRISON_NAMESPACE" in (check.remedy or "")


async def test_the_version_of_the_server_is_known(settings: Settings) -> None:
    version = await server_version(settings)

    assert version is not None
    assert version.startswith("1.")


NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AUTH = WatchTrouble(code="provider_auth", message="key revoked", since=NOW - timedelta(minutes=4))


def _ago(**span: float) -> datetime:
    return NOW - timedelta(**span)


@pytest.mark.parametrize(
    ("report", "begun_at", "fault", "status", "text"),
    [
        pytest.param(
            WatchReport(passed_at=_ago(seconds=59)), _ago(days=3), "", "ok", "59 s ago", id="passes"
        ),
        pytest.param(
            WatchReport(passed_at=_ago(seconds=2), error=AUTH),
            _ago(days=3),
            "",
            "ok",
            "2 s ago",
            id="a first failed pass",
        ),
        pytest.param(
            WatchReport(passed_at=_ago(minutes=5), error=AUTH),
            _ago(days=3),
            "",
            "fail",
            "since 2026-03-01 11:56:00 UTC: provider_auth: key revoked",
            id="cannot be listed",
        ),
        pytest.param(
            WatchReport(error=AUTH), _ago(seconds=5), "", "fail", "no pass yet", id="never listed"
        ),
        pytest.param(
            WatchReport(passed_at=_ago(hours=9)), _ago(seconds=5), "", "ok", "starting", id="anew"
        ),
        pytest.param(WatchReport(), _ago(seconds=5), "", "ok", "starting", id="first start"),
        pytest.param(
            WatchReport(), _ago(seconds=5), "KeyError: 'x'", "fail", "KeyError", id="broken"
        ),
        pytest.param(
            WatchReport(passed_at=_ago(hours=9)),
            _ago(hours=10),
            "",
            "fail",
            "03:00",
            id="no worker",
        ),
        pytest.param(
            WatchReport(interval=timedelta(minutes=5), passed_at=_ago(minutes=14)),
            _ago(days=3),
            "",
            "ok",
            "840 s ago",
            id="a long interval",
        ),
    ],
)
def test_a_watch_is_judged_by_its_last_complete_pass(
    report: WatchReport, begun_at: datetime, fault: str, status: str, text: str
) -> None:
    found = judge_watch("watch x", report, now=NOW, begun_at=begun_at, fault=fault)

    assert found.status == status
    assert text in found.detail
    assert (found.remedy is None) == (status == "ok")
