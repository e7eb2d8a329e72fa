"""Follows one predictor: receives its snapshots, notifies it of requests, and reconnects."""

import asyncio
from collections.abc import Callable

from foretell import wire
from foretell.engine.doubt import Doubt
from foretell.engine.progress import StreamProgress
from foretell.engine.seen_limits import OBSERVED, TELL_EVERY_S
from foretell.engine.snapshot_cache import FollowedEngine
from foretell.engine.stream_text import part_of
from foretell.model import RequestSpec
from foretell.services.process.snapshot_stream import SnapshotStream
from foretell.services.process.traffic import Traffic
from foretell.v1 import predictor_pb2

_GATHER_S = 0.1
"""How long the end of a request may wait to be sent with the next notice to that predictor. It is
not urgent, and sending both costs as much as sending one."""

Watch = Callable[[bytes, int], None]
Seen = predictor_pb2.Seen


class Following(SnapshotStream):
    """One followed predictor, from `start` to `stop`."""

    def __init__(
        self,
        address: str,
        traffic: Traffic,
        engine: FollowedEngine,
        refused: Callable[[str], None],
        shown: Callable[[bool], None],
    ) -> None:
        """See `SnapshotStream`."""
        super().__init__(address, traffic, engine, refused, shown)
        self.passed_on: Callable[[predictor_pb2.Spending], None] = lambda spending: None
        """Called with messages that another scheduler sends to all through the predictor."""
        self._waiting: dict[str, asyncio.Future[Seen | None]] = {}
        self._unsent: list[bytes] = []
        self._gathering: asyncio.TimerHandle | None = None
        self.doubt = Doubt()
        """Whether predictions for the engine can be trusted."""
        self._progress = StreamProgress()
        self._telling: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Stop following, and send what is left."""
        if self._telling is not None:
            self._telling.cancel()
        if self._unsent:
            self._send()
        super().stop()

    def pass_on(self, spending: predictor_pb2.Spending) -> None:
        """Send a message to all other schedulers that follow this predictor."""
        self._notify(predictor_pb2.Notice(spending=spending))

    def reserve(self, request: RequestSpec, now_s: float | None = None) -> bool:
        """Reserve for `request`, sent to the engine at `now_s` on the event loop's clock, by
        default now. Return whether the predictor could be notified."""
        self.engine.reserve(request, self._loop.time() if now_s is None else now_s)
        return self._notify(predictor_pb2.Notice(reserved=wire.request_to_proto(request)))

    def revise(self, request: RequestSpec) -> None:
        """Update `request`, and notify the predictor if the request is still open."""
        age_s = self.engine.revise(request, self._loop.time())
        if age_s is not None:
            self.still_open(request, age_s)

    def watch(self, spec: RequestSpec) -> Watch | None:
        """Watch the stream of a request to an observed engine; None for other engines. The returned
        function gets each part's bytes, and the number of tokens stated so far."""
        if not self._observes:
            return None
        progress, stream = self._progress, self._progress.open(spec.request_id)
        if self._telling is None:
            self._telling = self._loop.call_later(TELL_EVERY_S, self._tell_progress)

        def came(data: bytes, stated: int) -> None:
            part = part_of(data, stated / spec.sequences)
            progress.came(stream, part, self._loop.time())

        return came

    @property
    def _observes(self) -> bool:
        """Whether the engine is observed: its predictor knows only what schedulers tell it."""
        predictor = self.engine.predictor
        return predictor is not None and OBSERVED in predictor.engine_config.approximations

    def _tell_progress(self) -> None:
        progress, self._telling = self._progress, None
        first_ends = progress.first_ends()
        ends = progress.take(self._loop.time())
        if not (progress.streams or ends.ago_s):
            return
        self._telling = self._loop.call_later(TELL_EVERY_S, self._tell_progress)
        message = predictor_pb2.Progress(
            steps_ago_s=ends.ago_s,
            request_id=progress.streams,
            tokens=progress.tokens(),
            first_step=first_ends,
            steps=ends.steps,
            since_ago_s=ends.since_ago_s,
        )
        self._notify(predictor_pb2.Notice(progress=message))

    def complete(
        self, request: RequestSpec, *, answered: bool, output_tokens: int = 0
    ) -> "asyncio.Future[Seen | None] | None":
        """Note the end of a request; return a future of what the predictor has seen of it.

        The future's result is None if the stream breaks. Without a stream there is no future.
        """
        request_id = request.request_id
        self.engine.ended(request_id)
        tokens_each = output_tokens / request.sequences
        age_s = self._progress.close(request_id, tokens_each, self._loop.time())
        if not self.is_open:
            return None
        found = self._waiting[request_id] = self._loop.create_future()
        found.add_done_callback(lambda _: self._waiting.pop(request_id, None))
        ended = wire.ended_to_proto(request, answered=answered, output_tokens=output_tokens)
        notice = predictor_pb2.Notice(ended=ended, age_s=age_s)
        if not answered or self._observes:
            self._notify(notice)
            return found
        self._unsent.append(notice.SerializeToString())
        if self._gathering is None:
            self._gathering = self._loop.call_later(_GATHER_S, self._send)
        return found

    def still_open(self, request: RequestSpec, age_s: float) -> None:
        reserved = wire.request_to_proto(request)
        self._notify(predictor_pb2.Notice(reserved=reserved, age_s=age_s))

    def ended(self) -> None:
        """Resolve all futures with None, since the stream has ended."""
        super().ended()
        self._unsent.clear()
        for found in self._waiting.values():
            if not found.done():
                found.set_result(None)

    def taken_in(self, message: predictor_pb2.Published) -> None:
        for spending in message.spending:
            self.passed_on(spending)
        for ended in message.ended:
            found = self._waiting.get(ended.request_id)
            if found is not None and not found.done():
                found.set_result(ended.seen)

    def _notify(self, notice: predictor_pb2.Notice) -> bool:
        self._unsent.append(notice.SerializeToString())
        return self._send()

    def _send(self) -> bool:
        """Send the gathered notices; return whether that was possible."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        unsent, self._unsent = self._unsent, []
        if self.congested:  # a predictor that hangs must not take memory
            self.close()
        if not self.is_open:
            return False
        self.send(*unsent)
        return True
