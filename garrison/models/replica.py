"""What is asked of a replica's node, and what it answers."""

from __future__ import annotations

from pydantic import Field

from garrison.models.base import Message, Time
from garrison.models.deployment import HealthProbe
from garrison.models.group import Node, RestartPolicy


class StartReplicaRequest(Message):
    """Start a replica's process on its node (activity `start_replica`).

    Attributes:
        generation: The revision and the deployment's own tries in one number, which rises.
        sealed_env: The user's variables, as sealed by the client.
        env: Set by Garrison, plain.
    """

    provider: str
    replica: str
    generation: int
    node: Node
    command: tuple[str, ...] | None = None
    image: str | None = None
    sealed_env: dict[str, str] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    restart: RestartPolicy = RestartPolicy.ALWAYS
    max_restarts: int = 3


class StartReplicaAnswer(Message):
    """Why it cannot be started there, None when it was."""

    failed: str | None = None


class AwaitReplicaRequest(Message):
    """Wait until a replica is ready (activity `await_replica`).

    Attributes:
        port: Where it listens on its node, None where it does not.
        health: None, and a replica without a port, is ready once its process runs.
        give_up_at: When it is too late, whoever asks.
    """

    provider: str
    replica: str
    node: Node
    port: int | None = None
    health: HealthProbe | None = None
    give_up_at: Time


class AwaitReplicaAnswer(Message):
    """Whether it is ready, and why not, in words."""

    ready: bool
    reason: str = ""


class StopReplicaRequest(Message):
    """Stop a replica's process (activity `stop_replica`)."""

    provider: str
    replica: str
    node: Node


class StopReplicaAnswer(Message):
    """The process has ended, or was not there."""


class ReadReplicaLogRequest(Message):
    """Read part of a replica's log (activity `read_replica_log`).

    Attributes:
        node: None where only a saved log is left.
        offset: A negative one counts from the end.
    """

    provider: str
    replica: str
    node: Node | None = None
    offset: int = 0
    limit: int = 65_536
