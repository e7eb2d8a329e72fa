"""The streams by which schedulers follow a predictor: snapshots go out, notices come in."""

import asyncio
from collections import deque
from functools import partial
from math import inf

from foretell import wire
from foretell.engine.published import Published, Snapshot
from foretell.engine.publishing import PrefixNews, Publisher
from foretell.services.predictor.observing import Observing
from foretell.services.predictor.service import PredictorService
from foretell.services.process.frames import ServedStream
from foretell.services.process.loop_clock import LoopClock
from foretell.services.process.traffic import Traffic
from foretell.v1 import predictor_pb2
from foretell.wire.published import published_to_proto, snapshot_to_proto

SETTLE_S = 0.05
"""Time allowed for the last snapshots of a request to arrive after its answer has ended."""
MAX_NOTICE_BYTES = 1 << 20
MAX_ENDED = 10_000
"""Most `Ended` messages kept for a follower that does not read."""
MAX_PASSED = 64
"""Most messages of other followers kept for one that does not read; older ones are dropped."""


class Streams:
    """All streams of one predictor."""

    def __init__(
        self, service: PredictorService, traffic: Traffic, observing: Observing | None = None
    ) -> None:
        """`observing` gets the requests of an engine that publishes nothing; None for others."""
        self.observing = observing
        self.publisher = Publisher(LoopClock(), service)
        self._open: set[FollowerStream] = set()
        self._latest: tuple[Snapshot | None, predictor_pb2.Snapshot | None] = None, None
        self.new = partial(FollowerStream, self, service, traffic)
        """Makes this side's end of a new stream."""
        service.changed = self.publisher.changed

    def join(self, stream: "FollowerStream") -> bool:
        """Add a follower that has authenticated; return False if there are too many."""
        joined = self.publisher.join(stream)
        if joined:
            self._open.add(stream)
        return joined

    def leave(self, stream: "FollowerStream") -> None:
        """Remove a stream that has ended."""
        self._open.discard(stream)
        self.publisher.leave(stream)

    def converted(self, snapshot: Snapshot | None) -> predictor_pb2.Snapshot | None:
        """The snapshot as it is sent, converted once for all streams."""
        if snapshot is not self._latest[0]:
            self._latest = snapshot, None if snapshot is None else snapshot_to_proto(snapshot)
        return self._latest[1]

    def pass_on(self, by: "FollowerStream", spending: predictor_pb2.Spending) -> None:
        """Pass a message of one follower to the others."""
        for other in self._open - {by}:
            other.passed.append(spending)
            self.publisher.due(0.0)

    def close(self) -> None:
        """End all streams."""
        for stream in list(self._open):
            stream.close()
        self.publisher.close()


class FollowerStream(ServedStream):
    """The stream of one following scheduler: its notices come in, snapshots go out."""

    def __init__(self, streams: Streams, service: PredictorService, traffic: Traffic) -> None:
        super().__init__(traffic, MAX_NOTICE_BYTES)
        self._streams = streams
        self._service = service
        self._notices = 0
        self._settling = deque[tuple[float, predictor_pb2.RequestEnded]]()
        self._ended = deque[predictor_pb2.Ended](maxlen=MAX_ENDED)
        self._prefixes = PrefixNews()
        self.passed = deque[predictor_pb2.Spending](maxlen=MAX_PASSED)
        """Messages of other followers that were not sent to this one yet."""
        self._profile_sent = False
        self.changes = -1
        """The number of changes that the follower knows of; -1: none yet."""

    def joined(self) -> bool:
        return self._streams.join(self)

    def left(self) -> None:
        self._streams.leave(self)
        self.settle(inf)
        if self._streams.observing is not None:
            self._streams.observing.left(self)

    @property
    def is_settling(self) -> bool:
        """Whether ended requests still wait for their last snapshots (`SETTLE_S`)."""
        return bool(self._settling)

    def publish(self, message: Published, changes: int) -> None:
        """Send what is new, unless the follower reads too slowly."""
        if self.congested:
            return  # the next message includes everything
        snapshot = message.snapshot
        if snapshot is not None:
            message, self.changes = message._replace(notices=self._notices), changes
        message = self._prefixes.add(message, self._service.predictor.ledger.prefixes)
        profile = "" if self._profile_sent else self._service.profile
        sent = published_to_proto(message, self._streams.converted(snapshot), profile)
        sent.ended.extend(self._ended)
        self._ended.clear()
        sent.unpredicted = self._service.unpredicted
        sent.spending.extend(self.passed)
        self.passed.clear()
        self._profile_sent |= snapshot is not None
        self.send(sent.SerializeToString())

    def heard(self, payload: bytes) -> None:
        notice = predictor_pb2.Notice.FromString(payload)
        if notice.HasField("spending"):
            self._streams.pass_on(self, notice.spending)
            return
        observing = self._streams.observing
        if notice.HasField("progress"):
            if observing is not None:
                observing.progressed(notice.progress)
            return
        self._notices += 1
        if observing is not None and notice.HasField("ended"):
            ended = notice.ended
            observing.ended(ended.request_id, notice.age_s, ended.output_tokens)
        if notice.HasField("reserved"):
            spec = wire.request_from_proto(notice.reserved)
            if observing is not None:
                observing.sent(self, spec, notice.age_s)
            self._service.reserve(spec, notice.age_s)
            self._streams.publisher.changed(self)
        elif notice.ended.answered:
            # Notices are faster than snapshots: the last snapshots of this request may still come.
            due_s = asyncio.get_running_loop().time() + SETTLE_S
            self._settling.append((due_s, notice.ended))
            self._streams.publisher.due(due_s)
        elif notice.HasField("ended"):
            self._settle(notice.ended)
            self._streams.publisher.changed(self)

    def settle(self, now_s: float) -> int:
        """Report ended requests whose last snapshots have had time to come; return how many.

        Called when a snapshot is due: a timer per request would cost as much as its notice.
        """
        count = 0
        while self._settling and self._settling[0][0] <= now_s:
            self._settle(self._settling.popleft()[1])
            count += 1
        return count

    def _settle(self, ended: predictor_pb2.RequestEnded) -> None:
        seen = self._service.complete(ended)
        self._ended.append(predictor_pb2.Ended(request_id=ended.request_id, seen=seen))
