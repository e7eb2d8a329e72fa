"""The simulated engines of a cluster. Compiled code runs their steps and takes their snapshots."""

from math import inf

import numpy as np

from foretell.engine.sequence import Sequence as EngineSequence
from foretell.engine.twin import Twin
from foretell.kernel.live import PLACED, Engines, publish_all, run, step
from foretell.kernel.snapshot_rows import Snapshots
from foretell.kernel.step_time import StepTime


class EngineTable:
    """The engines of a cluster, by index. Not thread-safe."""

    def __init__(self, engines: int) -> None:
        self._twins: list[Twin | None] = [None] * engines
        self._indices = list(np.arange(engines).reshape(-1, 1))
        self._kept: list[object] = [None] * engines  # the arrays whose addresses are written
        self._engines = Engines(
            np.zeros(engines, PLACED),
            np.full(engines, inf),
            np.zeros(engines, np.int64),
            np.zeros(engines),
            np.zeros(3, np.int64),
        )

    def put(self, index: int, twin: Twin, model: StepTime) -> None:
        """Put `twin` at `index`, with `model` for its step times.

        Call it again whenever `twin.live` or the model is replaced.
        """
        row = self._engines.placed[index]
        for name, array in zip(twin.live._fields, twin.live, strict=True):
            row[name] = array.ctypes.data, array.size
        row["model"] = tuple((array.ctypes.data, array.size) for array in model)
        row["max_num_scheduled_tokens"] = twin.config.max_num_scheduled_tokens
        row["max_num_seqs"] = twin.max_num_seqs
        self._twins[index], self._kept[index] = twin, (twin.live, model)

    def remove(self, index: int) -> None:
        """Stop an engine: its steps in flight never end."""
        self._engines.ends_s[index] = inf

    def change(self, index: int, now_s: float) -> None:
        """Note a change of an engine's state by something other than a step."""
        self._engines.changes[index] += 1
        self._engines.changed_s[index] = now_s

    def changes(self, index: int) -> int:
        """The number of changes of an engine's state."""
        return int(self._engines.changes[index])

    def changed_s(self, index: int) -> float:
        """The time of the latest change of an engine's state."""
        return float(self._engines.changed_s[index])

    def in_step(self, index: int) -> bool:
        """Whether a step of an engine is in flight."""
        return bool(self._engines.ends_s[index] < inf)

    def step(self, index: int, now_s: float) -> list[EngineSequence]:
        """End an engine's oldest step in flight, if any, and schedule steps as far as possible.

        Returns the sequences that ended. A broken invariant ends the process.
        """
        step(self._engines, index, now_s)
        return self._ended()

    def run(self, until_s: float, *, each: bool) -> tuple[int, float, list[EngineSequence]] | None:
        """End steps in order of time, up to `until_s`, until one ends a request; `each`: only one.

        Returns the last step's engine, its time, and the sequences it ended; None if there is no
        such step up to `until_s`. A broken invariant ends the process.
        """
        if not run(self._engines, until_s, each):
            return None
        index = self.stepped
        return index, self.changed_s(index), self._ended()

    @property
    def stepped(self) -> int:
        """The index of the engine that made the latest step."""
        return int(self._engines.outcome[0])

    def publish(self, snapshots: Snapshots, index: int, now_s: float) -> None:
        """Take a snapshot of an engine, at the engine's index in `snapshots`."""
        publish_all(self._engines, snapshots, self._indices[index], now_s)

    def _ended(self) -> list[EngineSequence]:
        index, count, batch = self._engines.outcome.tolist()
        twin = self._twins[index]
        assert twin is not None, "no twin at this index"
        return twin.ended(count, batch) if count else []
