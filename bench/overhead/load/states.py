"""`python -m bench.overhead.load.states`: publishes the states of busy engines, one a step each."""

import asyncio
import sys
import time
import uuid
from collections.abc import Callable
from random import Random
from typing import Any

from foretell import wire
from foretell.latency.linear import StepTimeModel
from foretell.model import BatchShape, EngineSnapshot, RequestTable, Step
from foretell.services.backend.publisher import SnapshotPublisher
from foretell.services.process import runtime
from foretell.tools.harness.cases import Size, make_case
from foretell.tools.harness.kernel import profile_step_time
from foretell.v1 import snapshot_pb2

STEP_S = 0.025
_HEARTBEAT_S = 0.5
_NOISE_RATIO = 0.03  # of step times


class BusyEngine:
    """An engine that decodes: each request that ends is replaced at once, so it stays as busy."""

    def __init__(self, index: int, size: Size, step_time: StepTimeModel) -> None:
        self._rng = Random(index)
        self._step_time = step_time
        snapshot = make_case(size, index, async_scheduling=True).snapshot
        self._first: EngineSnapshot = snapshot
        self._name, self._run = f"engine-{index}", uuid.uuid4().hex
        self._config = wire.config_to_proto(snapshot.config)
        table = RequestTable.of(snapshot.running)
        *names, _ = RequestTable.__dataclass_fields__  # but for multimodal inputs: there are none
        self._running: dict[str, Any] = {name: list(getattr(table, name)) for name in names}
        self._waiting = wire.columns_to_proto(snapshot.waiting)
        self._steps: list[Step] = []
        self._sequence = 0

    def step(self) -> snapshot_pb2.EngineSnapshot:
        """The snapshot after one more step."""
        now = time.time()
        self._sequence += 1
        self._decode(now)
        config, rows = self._first.config, self._running
        shape = BatchShape(
            decode_seqs=len(rows["computed_tokens"]), decode_pairs=sum(rows["computed_tokens"])
        )
        took_s = self._step_time.step_s(shape) * self._rng.gauss(1.0, _NOISE_RATIO)
        self._steps = [*self._steps[-2:], Step(self._sequence, now, took_s, shape)]
        used = sum(map(config.blocks_for, rows["computed_tokens"]))
        return snapshot_pb2.EngineSnapshot(
            instance_id=self._name,
            engine_run_id=self._run,
            sequence=self._sequence,
            taken_unix_s=now,
            published_unix_s=now,
            config=self._config,
            free_blocks=config.total_blocks - used,
            running=snapshot_pb2.RequestColumns(**rows),
            waiting=self._waiting,
            steps_in_flight=wire.steps_to_proto(self._steps[-2:]),
            completed_steps=wire.steps_to_proto(self._steps[:-2]),
        )

    def _decode(self, now: float) -> None:
        """Each request gets a token; those expected to end now are replaced by new ones."""
        rows = self._running
        for name in ("output_tokens", "computed_tokens"):
            rows[name] = [count + 1 for count in rows[name]]
        for row, tokens in enumerate(rows["predicted_output_tokens"]):
            if rows["output_tokens"][row] >= tokens:
                key = uuid.uuid4().hex
                rows["request_id"][row], rows["foretell_id"][row] = f"chatcmpl-{key}-0", key
                rows["arrival_unix_s"][row] = now
                rows["output_tokens"][row] = 1
                rows["computed_tokens"][row] = rows["prompt_tokens"][row] + 2


async def publish_all(
    engines: list[tuple[BusyEngine, Callable[..., None]]], stop: asyncio.Event
) -> None:
    """Publish until `stop`, the engines' steps spread evenly."""
    loop = asyncio.get_running_loop()
    pause_s, due_s = STEP_S / len(engines), loop.time()
    while not stop.is_set():
        for engine, publish in engines:
            due_s += pause_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            publish(engine.step())


def main() -> None:
    """Arguments: running, waiting, and the endpoint of each engine."""
    running, waiting, *endpoints = sys.argv[1:]
    size, step_time = Size(int(running), int(waiting)), profile_step_time()
    engines = [
        (BusyEngine(index, size, step_time), SnapshotPublisher(endpoint, _HEARTBEAT_S).publish)
        for index, endpoint in enumerate(endpoints)
    ]
    print("publishing", flush=True)
    runtime.run(lambda stop: publish_all(engines, stop), starts_others=True)


if __name__ == "__main__":
    main()
