"""The noun `provider`: where machines come from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import typer
from rich.console import RenderableType

from garrison.cli.cluster_tables import marked
from garrison.cli.groups import Group
from garrison.cli.output import Output, OutputOption, emit, line, table_of
from garrison.cli.session import connected
from garrison.cli.text import NONE, span
from garrison.models.observation import ProviderStatus, WatchReport
from garrison.models.provider import WorkloadSupport

app = typer.Typer(cls=Group, add_completion=False, help="Where machines come from.")


@app.callback()
def _provider() -> None:
    """Where machines come from."""


@app.command("list")
def list_providers(output: OutputOption = Output.TABLE) -> None:
    """List the providers that workers serve, and what each can do."""
    with connected() as link:
        found = link.run(link.garrison.providers.list())
    emit(found, output, lambda: _tables(found))


def _tables(providers: Sequence[ProviderStatus]) -> list[RenderableType]:
    if not providers:
        return [line("no provider is served; is `garrison up` or a `garrison worker` running?")]
    columns = (
        *("NAME", "TYPE", "REGIONS", "CAN", "WORKLOAD", "SETTLE", "START TIMEOUT"),
        *("LAST PASS", "WATCH"),
    )
    return [table_of(columns, [_row(facts) for facts in providers])]


def _row(facts: ProviderStatus) -> list[str]:
    can = facts.capabilities
    abilities = {
        "gang": can.gang,
        "restart": can.restart,
        "spot": can.spot,
        "volumes": can.volumes,
        "live price": can.live_price,
    }
    return [
        marked(facts.name, facts.simulated, facts.type),
        facts.type,
        ", ".join(facts.regions) or "everywhere",
        ", ".join(name for name, able in abilities.items() if able) or "-",
        "none" if can.workload is WorkloadSupport.NONE else str(can.workload),
        span(facts.settle),
        span(facts.start_timeout),
        _last_pass(facts.watch),
        _watch(facts.watch),
    ]


def _last_pass(watch: WatchReport | None) -> str:
    if watch is None or watch.passed_at is None:
        return NONE
    return f"{span(datetime.now(UTC) - watch.passed_at)} ago"


def _watch(watch: WatchReport | None) -> str:
    if watch is None:
        return NONE
    found = [f"{watch.error.code}: {watch.error.message}"] if watch.error else []
    if watch.orphan_machines:
        found.append(f"orphans: {watch.orphan_machines} (garrison orphan list)")
    return "; ".join(found) or "ok"
