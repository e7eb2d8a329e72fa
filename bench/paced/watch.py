"""Listens to all engines' snapshots: how late their steps are, and whom they preempt."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Never

from foretell.latency.linear import StepTimeModel
from foretell.services.process.memory_log import LogReader, path_of
from foretell.v1 import snapshot_pb2
from foretell.wire import shape_from_proto

_LOOK_EVERY_S = 0.005


class Watch:
    """Lateness of steps, and preemptions, since the last `reset`."""

    def __init__(self, step_time: StepTimeModel, speedup: float) -> None:
        self._step_time = step_time
        self._speedup = speedup
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._due_s = 0.0
        self._took_s = 0.0
        self.steps = 0
        """Number of steps that another followed at once."""
        self._preemptions: dict[str, int] = {}

    @property
    def preemptions(self) -> int:
        """Preemptions of all requests; one in the very last step of a request would be missed."""
        return sum(self._preemptions.values())

    @property
    def lateness(self) -> float:
        """How much longer steps took than they should, all together; 0.1 is 10%.

        From the start of a step to that of the next, so that what is between them counts too.
        """
        return self._took_s / self._due_s - 1.0 if self._due_s else 0.0

    def hear(self, snapshot: snapshot_pb2.EngineSnapshot) -> None:
        """Take in one snapshot."""
        for requests in (snapshot.running, snapshot.waiting):
            self._preemptions.update(zip(requests.foretell_id, requests.preemptions, strict=True))
        if len(snapshot.steps_in_flight) > 1:
            return
        # An engine that was idle in between told its last step in a snapshot without a new one.
        for step, following in pairwise([*snapshot.completed_steps, *snapshot.steps_in_flight]):
            due_s = self._step_time.step_s(shape_from_proto(step.shape)) / self._speedup
            took_s = following.started_unix_s - step.started_unix_s
            self._due_s += due_s
            self._took_s += took_s
            self.steps += 1


@asynccontextmanager
async def watching(feeds: Sequence[str], watch: Watch) -> AsyncIterator[None]:
    """Tells `watch` of all snapshots from `feeds`, which are in shared memory."""
    listening = [asyncio.create_task(_look(path_of(feed), watch)) for feed in feeds]
    try:
        yield
    finally:
        for each in listening:
            each.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


async def _look(path: Path, watch: Watch) -> Never:
    """The engine that writes the file has been started before."""
    log = LogReader(path)
    log.reopen()
    try:
        while True:
            while (message := log.read()) is not None:
                watch.hear(snapshot_pb2.EngineSnapshot.FromString(message))
            await asyncio.sleep(_LOOK_EVERY_S)
    finally:
        log.close()
