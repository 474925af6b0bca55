"""The `Workloads` contract, for every adapter that declares `workload: ssh`."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from garrison.errors import NotFound, ProviderUnreachable
from garrison.models.group import Node, NodeStatus, RestartPolicy, WorkloadState, WorkloadStatus
from garrison.models.provider import WorkloadSupport
from garrison.providers.base import NodeSetup, Provider, WorkloadRequest, Workloads
from tests.contracts.adapters import AdapterUnderTest, Can, find, launched, needs, until

SECRET = "hunter2-a-value-that-is-nowhere-else"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB0lSbvhDb7xkOEGKlRCcH1eYF6rVHHVSbxHZ8QdTVwP me"


@pytest_asyncio.fixture
async def node(subject: AdapterUnderTest) -> Node:
    if subject.provider.facts.capabilities.workload is not WorkloadSupport.SSH:
        pytest.skip("its nodes are not reached by us")
    group = await launched(subject)
    return await prepared(subject, group.nodes[1])


async def prepared(subject: AdapterUnderTest, node: Node) -> Node:
    async def ready() -> Node | None:
        try:
            return await workloads(subject.provider).prepare_node(node, NodeSetup((KEY,)))
        except ProviderUnreachable:
            return None

    return await until(subject, ready)


def workloads(provider: Provider) -> Workloads:
    assert provider.workloads is not None
    return provider.workloads


def workload(subject: AdapterUnderTest, **changes: Any) -> WorkloadRequest:
    fields: dict[str, Any] = {
        "name": "main",
        "command": subject.command_running(),
        "env": {"TOKEN": SECRET},
        "restart": RestartPolicy.NEVER,
    }
    return WorkloadRequest(**(fields | changes))


async def state_of(subject: AdapterUnderTest, node: Node, name: str = "main") -> WorkloadStatus:
    found = await workloads(subject.provider).list_workloads(node)
    return next(status for status in found if status.name == name)


async def reaches(
    subject: AdapterUnderTest, node: Node, state: WorkloadState, name: str = "main"
) -> WorkloadStatus:
    async def reached() -> WorkloadStatus | None:
        status = await state_of(subject, node, name)
        return status if status.state is state else None

    return await until(subject, reached)


async def test_a_prepared_node_shows_the_same_host_key_again(
    subject: AdapterUnderTest, node: Node
) -> None:
    again = await prepared(subject, node)

    assert node.ssh is not None
    assert node.ssh.host_key is not None
    assert node.ssh.host_key.startswith("ssh-")
    assert again == node


async def test_a_workload_runs_until_it_is_stopped(subject: AdapterUnderTest, node: Node) -> None:
    on = workloads(subject.provider)
    await on.start_workload(node, workload(subject))
    await reaches(subject, node, WorkloadState.RUNNING)

    await on.stop_workload(node, "main")

    await reaches(subject, node, WorkloadState.STOPPED)


async def test_starting_again_leaves_a_running_workload_alone(
    subject: AdapterUnderTest, node: Node
) -> None:
    await workloads(subject.provider).start_workload(node, workload(subject))
    running = await reaches(subject, node, WorkloadState.RUNNING)

    await workloads(subject.reopened()).start_workload(node, workload(subject))

    assert await state_of(subject, node) == running
    assert len(await workloads(subject.provider).list_workloads(node)) == 1


async def test_starting_again_leaves_an_ended_workload_alone(
    subject: AdapterUnderTest, node: Node
) -> None:
    on = workloads(subject.provider)
    request = workload(subject, command=subject.command_exiting(0))
    await on.start_workload(node, request)
    await subject.let_exit(node, "main", 0)
    await reaches(subject, node, WorkloadState.SUCCEEDED)

    await on.start_workload(node, request)

    assert (await state_of(subject, node)).state is WorkloadState.SUCCEEDED


async def test_a_newer_generation_replaces_the_older_one(
    subject: AdapterUnderTest, node: Node
) -> None:
    on = workloads(subject.provider)
    await on.start_workload(node, workload(subject, command=subject.command_exiting(3)))
    await subject.let_exit(node, "main", 3)
    await reaches(subject, node, WorkloadState.FAILED)

    await on.start_workload(node, workload(subject, generation=2))

    status = await reaches(subject, node, WorkloadState.RUNNING)
    assert status.exit_code is None
    assert len(await on.list_workloads(node)) == 1


@pytest.mark.parametrize(
    ("code", "state"), [(0, WorkloadState.SUCCEEDED), (3, WorkloadState.FAILED)]
)
async def test_an_exit_is_told_with_its_code(
    subject: AdapterUnderTest, node: Node, code: int, state: WorkloadState
) -> None:
    on = workloads(subject.provider)

    await on.start_workload(node, workload(subject, command=subject.command_exiting(code)))
    await subject.let_exit(node, "main", code)

    assert (await reaches(subject, node, state)).exit_code == code


async def test_stopping_what_is_not_there_is_success(subject: AdapterUnderTest, node: Node) -> None:
    on = workloads(subject.provider)

    await on.stop_workload(node, "never-started")
    await on.start_workload(node, workload(subject))
    await on.stop_workload(node, "main")
    await on.stop_workload(node, "main")

    await reaches(subject, node, WorkloadState.STOPPED)


async def test_workloads_of_different_names_and_nodes_do_not_meet(
    subject: AdapterUnderTest, node: Node
) -> None:
    on = workloads(subject.provider)
    group = await find(subject.provider, "token-1")
    assert group is not None
    other = await prepared(subject, group.nodes[0])

    await on.start_workload(node, workload(subject, name="one"))
    await on.start_workload(node, workload(subject, name="two"))
    await reaches(subject, node, WorkloadState.RUNNING, "two")
    await on.stop_workload(node, "one")

    await reaches(subject, node, WorkloadState.STOPPED, "one")
    assert (await state_of(subject, node, "two")).state is WorkloadState.RUNNING
    assert list(await on.list_workloads(other)) == []


async def test_a_log_keeps_every_byte_and_is_read_in_parts(
    subject: AdapterUnderTest, node: Node
) -> None:
    on = workloads(subject.provider)
    await on.start_workload(node, workload(subject))
    await reaches(subject, node, WorkloadState.RUNNING)
    written = b"\xff\x00 not text \r\n" + "häß".encode() + b"x" * 20_000 + b"\nend\n"
    await subject.write_log(node, "main", written)

    async def whole() -> bytes | None:
        chunk = await on.read_log(node, "main", offset=0, limit=1_000_000)
        return chunk.data if chunk.data.endswith(b"\nend\n") else None

    log = await until(subject, whole)
    parts, offset = [], 0
    while part := await on.read_log(node, "main", offset=offset, limit=7_001):
        if not part.data:
            break
        assert part.offset == offset
        parts.append(part.data)
        offset = part.next_offset

    assert log.endswith(written)
    assert b"".join(parts) == log


async def test_a_negative_offset_counts_from_the_end(subject: AdapterUnderTest, node: Node) -> None:
    on = workloads(subject.provider)
    await on.start_workload(node, workload(subject))
    await reaches(subject, node, WorkloadState.RUNNING)
    await subject.write_log(node, "main", b"first\nlast\n")

    async def tail() -> bytes | None:
        chunk = await on.read_log(node, "main", offset=-5, limit=100)
        return chunk.data if chunk.data == b"last\n" else None

    await until(subject, tail)
    beyond_start = await on.read_log(node, "main", offset=-10_000_000, limit=100)
    beyond_end = await on.read_log(node, "main", offset=10_000_000, limit=100)
    assert beyond_start.offset == 0
    assert beyond_end.data == b""


async def test_a_log_has_ended_only_at_its_end_and_after_its_workload(
    subject: AdapterUnderTest, node: Node
) -> None:
    on = workloads(subject.provider)
    await on.start_workload(node, workload(subject))
    await reaches(subject, node, WorkloadState.RUNNING)
    await subject.write_log(node, "main", b"0123456789\n")
    running = await on.read_log(node, "main", offset=0, limit=1_000_000)

    await on.stop_workload(node, "main")
    await reaches(subject, node, WorkloadState.STOPPED)
    part = await on.read_log(node, "main", offset=0, limit=3)
    whole = await on.read_log(node, "main", offset=0, limit=1_000_000)

    assert (running.ended, part.ended, whole.ended) == (False, False, True)


async def test_the_log_of_a_workload_that_never_was_is_not_found(
    subject: AdapterUnderTest, node: Node
) -> None:
    with pytest.raises(NotFound):
        await workloads(subject.provider).read_log(node, "never-started", offset=0, limit=10)


async def test_a_stopped_node_does_not_answer(subject: AdapterUnderTest, node: Node) -> None:
    needs(subject, Can.STOP_NODE)
    on = workloads(subject.provider)
    await on.start_workload(node, workload(subject))
    await subject.stop_node(node)

    for call in (
        on.prepare_node(node, NodeSetup()),
        on.start_workload(node, workload(subject)),
        on.list_workloads(node),
        on.read_log(node, "main", offset=0, limit=10),
    ):
        with pytest.raises(ProviderUnreachable):
            await call


async def test_a_boot_ends_workloads_and_keeps_their_log(
    subject: AdapterUnderTest, node: Node
) -> None:
    needs(subject, Can.STOP_NODE)
    on = workloads(subject.provider)
    await on.start_workload(node, workload(subject))
    await reaches(subject, node, WorkloadState.RUNNING)
    await subject.write_log(node, "main", b"before the boot\n")
    await subject.stop_node(node)
    await subject.provider.restart_node(node.provider_id, "restart-1")
    booted = (await launched(subject)).nodes[1]
    node = await prepared(subject, booted)

    after_boot = await on.list_workloads(node)
    await on.start_workload(node, workload(subject))
    await reaches(subject, node, WorkloadState.RUNNING)
    log = await on.read_log(node, "main", offset=0, limit=1_000_000)

    assert all(status.state is not WorkloadState.RUNNING for status in after_boot)
    assert b"before the boot\n" in log.data


async def test_a_list_of_groups_never_contradicts_the_node(
    subject: AdapterUnderTest, node: Node
) -> None:
    await workloads(subject.provider).start_workload(node, workload(subject))
    running = await reaches(subject, node, WorkloadState.RUNNING)

    group = await find(subject.provider, "token-1")

    assert group is not None
    assert group.nodes[1].status is NodeStatus.RUNNING
    assert group.nodes[1].workloads in {None, (running,)}


async def test_no_value_of_the_environment_is_kept_in_any_file(
    subject: AdapterUnderTest, node: Node
) -> None:
    on = workloads(subject.provider)
    request = workload(subject)

    await on.start_workload(node, request)
    await reaches(subject, node, WorkloadState.RUNNING)

    assert SECRET not in repr(request)
    holding = [path for path in subject.state_files() if SECRET.encode() in path.read_bytes()]
    assert holding == []
