"""A Garrison of the benchmark's own: a server on a file, workers, a client; nothing is left."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.client import Client

from benchmarks import sample as samples
from benchmarks.arms import GarrisonArm, RawArm
from benchmarks.processes import WorkerProcess, cpu_seconds
from benchmarks.sample import Sample
from garrison.models.cluster_messages import QuoteQuery
from garrison.providers.simulated.console import SimulatedConsole
from garrison.service import connect_service
from garrison.settings import Settings, load_settings
from garrison.workers.embedded import EmbeddedServer, Ports
from garrison.workflows.cluster import ClusterWorkflow
from garrison.workflows.visibility import ALL_KEYS


class Installation:
    """One data directory with everything that runs on it.

    Attributes:
        folder: The data directory.
        client: Connected as the command line connects.
    """

    def __init__(
        self, folder: Path, settings: Settings, server: EmbeddedServer, client: Client
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.client = client
        self._server = server
        self._stack = AsyncExitStack()

    @property
    def server_cpu(self) -> float:
        """CPU seconds that the server has used."""
        return cpu_seconds(self._server.record.server.pid)

    @property
    def console(self) -> SimulatedConsole:
        """The simulated cloud's own view."""
        return SimulatedConsole(self.settings.simulated_cloud("simulated"))

    async def worker(self, arm: str = "garrison") -> WorkerProcess:
        """Start a worker; it ends with the installation."""
        more = () if arm == "garrison" else (str(self._sample_path),)
        worker = await WorkerProcess.start(arm, self.folder, *more)
        self._stack.push_async_callback(worker.stop)
        return worker

    async def take_sample(self, arm: GarrisonArm) -> Sample:
        """Lead one life with nothing beside it, and keep it for the raw arm."""
        name = "sample"
        quote = await arm.clusters.quote(arm.spec(name))
        await arm.clusters.launch(name, quote_id=quote.quote_id)
        handle = arm.handle(name)
        await arm.running(name)
        answers: dict[str, Any] = {
            "get": await handle.query(ClusterWorkflow.get),
            "get_quote": await handle.query(
                ClusterWorkflow.get_quote, QuoteQuery(quote_id=quote.quote_id)
            ),
        }
        await arm.end(name)
        history = await handle.fetch_history()
        queried = {key: json.loads(one.model_dump_json()) for key, one in answers.items()}
        samples.save(self._sample_path, history, queried)
        return samples.load(self._sample_path)

    @property
    def _sample_path(self) -> Path:
        return self.folder / "sample.json"

    async def aclose(self) -> None:
        """End the workers, then the server."""
        try:
            await self._stack.aclose()
        finally:
            await self._server.stop()


@asynccontextmanager
async def installed(**config: Any) -> AsyncIterator[Installation]:
    """Start a server as `garrison up` does, on a new directory that goes with it.

    Args:
        config: More fields of `garrison.yaml`.
    """
    folder = Path(tempfile.mkdtemp(prefix="garrison-bench-"))
    try:
        limits = {"max_nodes": 100}
        given = {"providers": {"simulated": {"boot_seconds": 0}}, "limits": limits, **config}
        (folder / "garrison.yaml").write_text(json.dumps(given))  # JSON is YAML
        settings = load_settings({"GARRISON_DATA_DIR": str(folder), "GARRISON_USER": "bench"})
        server = EmbeddedServer(folder, _free_ports(), namespace="default", attributes=ALL_KEYS)
        await server.start()
        try:
            client = await connect_service(settings)
        except BaseException:
            await server.stop()
            raise
        installation = Installation(folder, settings, server, client)
        try:
            yield installation
        finally:
            await installation.aclose()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def raw_arm(installation: Installation, like: GarrisonArm, name: str = "raw") -> RawArm:
    """Return a raw arm that sends the same files as Garrison's."""
    return RawArm(installation.client, name, like.spec)


def _free_ports() -> Ports:
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        return Ports(first.getsockname()[1], second.getsockname()[1])
