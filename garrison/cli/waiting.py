"""Waiting for a cluster: a live view on a terminal, one line per change elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table

from garrison.cli.cluster_tables import events_table, node_table
from garrison.cli.live import live_view
from garrison.cli.output import Output
from garrison.cli.session import Link
from garrison.cli.text import counted, usd, when
from garrison.errors import ErrorCode, InvalidSpec, error_of
from garrison.models.cluster_state import CLOSED_PHASES, Phase
from garrison.models.cluster_status import ClusterStatus
from garrison.models.group import NodeStatus, WorkloadState
from garrison.models.problems import shown, suggestion

WORKLOAD = "workload"
LAST_EVENTS = 3

OnChange = Callable[[ClusterStatus], None]


@dataclass(frozen=True, slots=True)
class Goal:
    """What is waited for: any of some phases, or the end of the workload when there is none."""

    phases: frozenset[Phase] = frozenset()

    @property
    def text(self) -> str:
        """The goal as the person names it."""
        return " or ".join(sorted(self.phases)) or WORKLOAD


def goal(text: str) -> Goal:
    """Read a phase, or `workload`."""
    word = text.lower()
    if word == WORKLOAD:
        return Goal()
    if word in set(Phase):
        return Goal(frozenset({Phase(word)}))
    raise typer.BadParameter(f"{shown(text)} is no phase; {suggestion(text, [*Phase, WORKLOAD])}")


For = Annotated[
    Goal | None,
    typer.Option(
        "--for",
        parser=goal,
        metavar="PHASE|workload",
        help="What to wait for; `workload` is the end of the command on every node.",
    ),
]


def wants_to_wait(wait: bool, goal: Goal | None, timeout: timedelta | None) -> bool:
    """Return whether a command waits: `--for` says so too.

    Raises:
        InvalidSpec: There is a time to wait, and no wait.
    """
    if timeout is not None and not wait and goal is None:
        raise InvalidSpec("--timeout is how long to wait; give --wait too")
    return wait or goal is not None


def wait_for(
    link: Link,
    name: str,
    goal: Goal,
    *,
    output: Output,
    uid: str | None = None,
    timeout: timedelta | None = None,
    check: OnChange | None = None,
) -> ClusterStatus:
    """Return once the goal is reached, showing what changes meanwhile.

    Args:
        link: The connection.
        name: Of the cluster.
        goal: What ends the wait.
        output: Programs get the answer alone.
        uid: Pins the life.
        timeout: None waits for ever.
        check: Sees each change, and ends the wait by raising.

    Raises:
        Interrupted: Ctrl-C.
    """
    clusters = link.garrison.clusters
    with _view(name, goal, output) as view:

        def on_change(status: ClusterStatus) -> None:
            view(status)
            if check is not None:
                check(status)

        if goal.phases:
            call = clusters.wait(
                name, phases=goal.phases, timeout=timeout, uid=uid, on_change=on_change
            )
        else:
            call = clusters.wait_workload(name, timeout=timeout, on_change=on_change)
        goes_on = f"cluster {name} goes on; `garrison cluster wait {name}` follows it again"
        return link.run(call, goes_on=goes_on)


def workload_exit(status: ClusterStatus) -> int:
    """Return the workload's own exit status: 0 if it succeeded on every node."""
    states = [node.workload.state if node.workload else None for node in status.nodes]
    return 0 if states and all(s is WorkloadState.SUCCEEDED for s in states) else 1


def check_attempt(before: ClusterStatus, now: ClusterStatus) -> None:
    """Return while the attempt that was asked for may still succeed.

    Raises:
        GarrisonError: It is over, nodes are still down, and no further one is due.
    """
    recovery, was = now.recovery, before.recovery
    counted = (recovery.episode, recovery.attempts) != (was.episode, was.attempts)
    idle = not recovery.in_progress and recovery.next_attempt_at is None
    if now.phase is not Phase.DEGRADED or not counted or not idle or was.in_progress:
        return
    code = now.last_error.code if now.last_error else ErrorCode.PROVIDER_ERROR
    message = recovery.last_error or (now.last_error.message if now.last_error else "")
    raise error_of(code, f"{now.name} is still degraded: {message or 'the attempt is over'}")


def _view(name: str, goal: Goal, output: Output) -> contextlib.AbstractContextManager[OnChange]:
    return live_view(f"waiting for {goal.text} of {name}", output, summary=summary, parts=_parts)


def _parts(status: ClusterStatus) -> Iterator[RenderableType]:
    if status.nodes:
        yield node_table(status)
    if status.events:
        yield _newest(status)


def _newest(status: ClusterStatus) -> Table:
    return events_table(status.events[-LAST_EVENTS:])


def summary(status: ClusterStatus) -> str:
    """Return a cluster's state in one line."""
    parts = [f"{status.name}: {status.phase}"]
    if status.phase is Phase.TERMINATING:
        parts.append(_left(status))
    elif status.phase not in CLOSED_PHASES:
        parts += [_running(status), _others(status), _workloads(status), _recovery(status)]
    parts.append(_blocked(status))
    if status.phase is Phase.RUNNING and status.hourly_usd is not None:
        parts.append(f"{usd(status.hourly_usd)} USD/h")
    if status.last_error is not None and status.phase is not Phase.RUNNING:
        parts.append(f"{status.last_error.code}: {status.last_error.message}")
    return ", ".join(part for part in parts if part)


def _left(status: ClusterStatus) -> str:
    """Return how many machines still exist; a node that was never bought is none."""
    left = [n for n in status.nodes if n.status is not NodeStatus.TERMINATED]
    bought = [n for n in left if n.provider_id is not None]
    return f"{counted(len(bought), 'node')} left" if bought or not left else ""


def _running(status: ClusterStatus) -> str:
    if not status.nodes:
        return ""
    running = sum(node.status is NodeStatus.RUNNING for node in status.nodes)
    return f"{running} of {counted(status.nodes_wanted, 'node')} running"


def _others(status: ClusterStatus) -> str:
    calm = {NodeStatus.RUNNING, NodeStatus.PENDING, NodeStatus.STARTING}
    bad = [f"node {node.rank} {node.status}" for node in status.nodes if node.status not in calm]
    return ", ".join(bad)


def _workloads(status: ClusterStatus) -> str:
    states = [str(node.workload.state) for node in status.nodes if node.workload]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"workload {' and '.join(counts)}" if counts else ""


def _recovery(status: ClusterStatus) -> str:
    recovery = status.recovery
    if recovery.in_progress:
        return f"recovery attempt {recovery.attempts} of {recovery.max_attempts}"
    if recovery.next_attempt_at is not None:
        return f"next recovery attempt at {when(recovery.next_attempt_at)}"
    return ""


def _blocked(status: ClusterStatus) -> str:
    blocked = status.blocked
    if blocked is None:
        return ""
    return f"blocked by {blocked.code}: {blocked.message}"
