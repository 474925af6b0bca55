"""What a deployment tells routers and the watch of its load: quick calls on the common queue."""

from __future__ import annotations

import asyncio

from temporalio import activity

from garrison.activities.heartbeat import beating
from garrison.activities.loads import Loads
from garrison.load.routers import Routers
from garrison.models.load import DrainAnswer, DrainRequest, Followed

LOOK_AGAIN = 0.5
"""Seconds between two looks at what a router still has under way."""


class PublishActivities:
    """Bound to the routers and to the watches of load."""

    def __init__(self, loads: Loads, routers: Routers) -> None:
        self._loads = loads
        self._routers = routers

    @activity.defn(name="publish_load")
    async def publish_load(self, said: Followed) -> None:
        """Tell all who count and carry a deployment's requests how it is now.

        Raises:
            RPCError: The service did not take the word to the watch of the load.
        """
        await asyncio.gather(self._loads.follow(said), self._routers.tell(said.endpoints))

    @activity.defn(name="drain_replica")
    async def drain_replica(self, request: DrainRequest) -> DrainAnswer:
        """Have routers send a replica nothing more, and wait until what it has is answered."""
        loop = asyncio.get_running_loop()
        until = loop.time() + request.within.total_seconds()
        async with beating():
            while True:
                left = await self._left(request)
                if left == 0 or loop.time() >= until:
                    return DrainAnswer(left=left)
                await asyncio.sleep(LOOK_AGAIN)

    async def _left(self, request: DrainRequest) -> int:
        known = await self._routers.tell(request.endpoints)
        return sum(one.replicas.get(request.replica, 0) for one in known if one is not None)
