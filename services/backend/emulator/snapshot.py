"""The twin's state as the snapshot that an engine publishes.

Columns are filled straight from the twin's sequences: creating a frozen object per request and step
would cost more than all other work of a step.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from foretell.engine import Sequence, StepBatch, Twin
from foretell.model import EngineConfig, Step
from foretell.v1 import snapshot_pb2
from foretell.wire import config_to_proto, steps_to_proto


@dataclass(frozen=True, slots=True)
class RequestTag:
    """What a Foretell scheduler has put into the `vllm_xargs` of a request."""

    foretell_id: str = ""
    predicted_output_tokens: float = 0.0


_UNTAGGED = RequestTag()


class SnapshotFeed:
    """Numbers, builds and publishes snapshots. Call it right after `Twin.schedule()`."""

    def __init__(
        self,
        send: Callable[[bytes, bytes, bytes], None],
        instance_id: str,
        engine_run_id: str,
        config: EngineConfig,
    ) -> None:
        """`send` takes the parts of a snapshot, as `SnapshotPublisher.send`."""
        self._send = send
        self._instance_id = instance_id
        self._engine_run_id = engine_run_id
        self._config = config_to_proto(config)
        self._targets = config.co_schedules
        self._sequence = 0

    def publish(
        self,
        twin: Twin,
        batch: StepBatch | None,
        tags: Mapping[str, RequestTag],
        *,
        now_unix_s: float,
        steps_in_flight: tuple[Step, ...],
        completed_steps: tuple[Step, ...],
    ) -> None:
        """Publish the state of `twin`, which has just scheduled `batch` (None: it is idle).

        `tags` maps a sequence's `request_id` to its tag.
        """
        self._sequence += 1
        scheduled = {seq.request_id: tokens for seq, tokens in batch.scheduled} if batch else {}
        snapshot = snapshot_pb2.EngineSnapshot(
            instance_id=self._instance_id,
            engine_run_id=self._engine_run_id,
            sequence=self._sequence,
            taken_unix_s=now_unix_s,
            published_unix_s=now_unix_s,
            config=self._config,
            free_blocks=twin.free_blocks,
            running=self._columns(twin.running, scheduled, tags),
            waiting=self._columns(twin.waiting, scheduled, tags),
            steps_in_flight=steps_to_proto(steps_in_flight),
        )
        if self._targets:
            snapshot.online_ttft_s, snapshot.usual_online_blocks = twin.expected_online
        once = snapshot_pb2.EngineSnapshot(completed_steps=steps_to_proto(completed_steps))
        self._send(snapshot.SerializeToString(), b"", once.SerializeToString())

    def _columns(
        self,
        sequences: Collection[Sequence],
        scheduled: Mapping[str, int],
        tags: Mapping[str, RequestTag],
    ) -> snapshot_pb2.RequestColumns:
        ids = [seq.request_id for seq in sequences]
        known = [tags.get(request_id, _UNTAGGED) for request_id in ids]
        absent = [0] * len(ids)
        targets_s = [seq.targets_s for seq in sequences] if self._targets else []
        return snapshot_pb2.RequestColumns(
            request_id=ids,
            foretell_id=[tag.foretell_id for tag in known],
            prompt_tokens=[seq.prompt_tokens for seq in sequences],
            output_tokens=[seq.output_tokens for seq in sequences],
            computed_tokens=[seq.computed_tokens for seq in sequences],
            cached_tokens=absent,  # the twin has no prefix cache
            max_tokens=[seq.max_tokens for seq in sequences],
            priority=[seq.priority for seq in sequences],
            predicted_output_tokens=[tag.predicted_output_tokens for tag in known],
            arrival_unix_s=[seq.arrival_s for seq in sequences],
            scheduled_tokens=[scheduled.get(request_id, 0) for request_id in ids],
            in_flight_tokens=absent,  # nor does it schedule ahead of its output
            preemptions=[seq.preemptions for seq in sequences],
            ttft_target_s=[ttft_s for ttft_s, _ in targets_s],
            tpot_target_s=[tpot_s for _, tpot_s in targets_s],
        )
