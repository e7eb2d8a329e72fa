"""One attempt: the request goes to the engine that was chosen, its answer to the client."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from foretell.placement.needs import Unfit
from foretell.services.process.logs import about
from foretell.services.scheduler.api.errors import ApiError
from foretell.services.scheduler.api.headers import RANK_HEADER, returned
from foretell.services.scheduler.api.parsing import PRIORITY_HEADER, ParsedRequest, for_engine
from foretell.services.scheduler.placing.kept import response_id
from foretell.services.scheduler.placing.needs import unfit_of
from foretell.services.scheduler.placing.placement import Placement
from foretell.services.scheduler.record.result import Result
from foretell.services.scheduler.relay.continuation import Progress
from foretell.services.scheduler.relay.encoding import IDENTITY, Decoder, Undecodable, decoder_of
from foretell.services.scheduler.relay.followed import FollowedFraming
from foretell.services.scheduler.relay.framing import (
    LONGEST_BODY_BYTES,
    Broken,
    End,
    Event,
    Framing,
    Lines,
    OpaqueFraming,
    StreamFraming,
    TooLong,
    Usage,
    WholeFraming,
)
from foretell.services.scheduler.relay.reply import Reply
from foretell.services.scheduler.relay.told import Told, said_in, with_text
from foretell.services.scheduler.relay.transport import EngineClient, Unreachable

logger = logging.getLogger(__name__)

_FAULTS = frozenset((401, 403, 405, 408))
"""Statuses below 500 that are not about the request: the engine refuses our key, or is none."""
_OUR_FAULTS = frozenset(f"http_{status}" for status in _FAULTS)
_REFUSALS = frozenset((404, 429))
"""Statuses that the client gets only if all engines say so: one may have lost its model, or have
too much to do."""


_FAULT_BYTES = 1 << 16
"""What is read of the body of an engine's failure, for its text."""
_FAULT_WAIT_S = 0.5
"""How long it is waited for: another engine is to answer meanwhile."""
_JSON = (b"content-type", b"application/json")
_OF_A_BODY = (b"content-type", b"content-encoding")
_OF_A_CODING = (b"content-encoding", b"content-md5", b"digest", b"content-digest", b"etag")
_UNKNOWN_PATH = b'{"detail":"Not Found"}'


@dataclass(frozen=True, slots=True)
class Refusal:
    """An engine's answer that the client gets if no other engine says anything else."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class AttemptFailed(Exception):
    """The engine gave nothing that the client could have seen; another one may do better."""

    def __init__(self, reason: str, refusal: Refusal | None = None, said: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        """A label for metrics."""
        self.refusal = refusal
        self.said = said
        """What the engine said of it, in a line."""
        self.unfit: Unfit = ""
        """The engine is well, and cannot serve the request for this reason."""
        self.is_own_word = reason not in _OUR_FAULTS
        """The client may be told what it said."""


class CannotServe(AttemptFailed):
    """The engine is well and refuses what another one may serve."""

    def __init__(self, unfit: Unfit, refusal: Refusal) -> None:
        super().__init__("unfit", refusal)
        self.unfit = unfit


class BrokenOff(AttemptFailed):
    """The engine was lost in mid-answer, and another one can go on."""


class TakenBack(Exception):
    """The request was called back from its engine's queue, to be sent elsewhere."""


class Attempt:
    """Carries one request to one engine, and the answer back as it comes.

    It listens to the engine's connection: what comes from there goes to the client at once, from
    the connection's own callback.
    """

    def __init__(
        self,
        request: ParsedRequest,
        request_id: str,
        forwarded_headers: dict[str, str],
        placement: Placement,
        reply: Reply,
        started: Callable[[Placement, bool], None],
        progress: Progress | None = None,
    ) -> None:
        """`started` is told when the first token is here, and whether another engine could go on.

        `progress`: of the answer, should another engine have to go on; None: none could. Where the
        reply has begun, this attempt goes on.
        """
        self.result = Result(continued=reply.started)
        self._request = request
        self._request_id = request_id
        self._forwarded_headers = forwarded_headers
        self._placement = placement
        self._reply = reply
        self._started = started
        self._progress = progress
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failure: Exception | None = None
        self._framing: Framing | None = None
        self._decoder: Decoder | None = None
        self._fault = ""
        """Why the attempt has failed, while what the engine says of it is read."""
        self._said = bytearray()
        self._engine_headers: Mapping[bytes, bytes] = {}
        self._streamed = False
        self._begun = False
        """The client has got something of this attempt."""
        self._broken = False

    async def run(self, engines: EngineClient) -> None:
        """Relay the answer to its end, or to a break after its first token.

        Raises `AttemptFailed` if nothing was sent to the client, `BrokenOff` if another engine can
        go on, `TakenBack` if the request is to
        be sent elsewhere, and `ApiError` if no engine could do better.
        """
        self._placement.take_back, self._placement.give_up = self._take_back, self._give_up
        spec, progress = self._placement.spec, self._progress
        instance, kind = self._placement.instance, self._request.content_type
        if self.result.continued and not instance.takes_fields:
            raise AttemptFailed("cannot_go_on")
        output_ids: list[list[int]] = []
        if progress is not None and self.result.continued:
            progress.begin_again()
            output_ids = progress.to_resume
        body = for_engine(
            self._request,
            spec.request_id,
            spec.length.expected_tokens,
            with_ids=progress is not None,
            output_ids=output_ids,
            response_id=response_id(self._request, self._placement.instance.config.instance_id),
            as_it_is=not instance.takes_fields,
        )
        path = self._request.endpoint.path
        headers = self._request_headers()
        try:
            upstream = await engines.post(instance, path, body, headers, self, content_type=kind)
        except Unreachable as error:
            raise AttemptFailed(error.reason) from error
        self._reply.flow(upstream.pause, upstream.resume)
        try:
            await self._over
        finally:
            upstream.close()
        if self._failure is not None:
            raise self._failure

    def _take_back(self) -> bool:
        """End the attempt, which tells the engine to stop; False if the client has seen of it."""
        whole = self._framing is not None and not self._streamed
        if self._over.done() or self._begun or whole:
            return False
        self._end_attempt(TakenBack())
        return True

    def _give_up(self) -> None:
        """The engine is silent: end the attempt, unless nobody could go on from here."""
        if not self._begun:
            self._end_attempt(AttemptFailed("silent"))
        elif self._progress is not None and self._progress.can_go_on:
            self.broken("silent")

    # --- what the connection tells ---

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """The engine begins to answer."""
        if self._over.done():
            return  # it was taken back: another engine's answer goes to the client
        self.result.status = status
        refused = status >= 400 and self.result.continued
        encoding = headers.get(b"content-encoding", b"").strip().lower()
        is_plain = encoding in IDENTITY
        if not is_plain and (decoder := decoder_of(encoding)) is not None:
            self._decoder, is_plain = decoder, True
            headers = {name: value for name, value in headers.items() if name not in _OF_A_CODING}
        if status >= 500 or 300 <= status < 400 or status in _FAULTS or refused:
            self._fault = f"http_{status}"
            asyncio.get_running_loop().call_later(_FAULT_WAIT_S, self._end_fault)
            return
        self._engine_headers = headers
        self._streamed = self._request.stream and status < 400
        endpoint = self._request.endpoint
        if not is_plain:
            self._begin_opaque(encoding)
        elif self._streamed and self._progress is not None:
            self._framing = FollowedFraming(self._progress)
        elif self._streamed:
            self._framing = StreamFraming(endpoint.opening)
        else:
            is_bytes = headers.get(b"content-type", b"").startswith(b"application/octet-stream")
            any_form = is_bytes and not endpoint.generates
            self._framing = WholeFraming(any_form=any_form or endpoint.is_form)

    def _begin_opaque(self, encoding: bytes) -> None:
        """The answer is passed on as it is, with the header that says how to read it."""
        instance_id = self._placement.instance.config.instance_id
        logger.warning(
            "%s answers in the encoding %r, although it was asked for none",
            instance_id,
            encoding.decode("latin-1"),
            extra=about(self._request_id),
        )
        if self.result.continued:
            self._end_attempt(AttemptFailed("encoded"))
        elif self._streamed:
            self._progress, self._framing = None, OpaqueFraming()
        else:
            self._framing = WholeFraming(any_form=True)

    def data(self, data: bytes) -> None:
        """A part of the answer's body has come."""
        framing = self._framing
        if self._over.done():
            return
        if framing is not None and self._begun and self._decoder is None:
            shown = framing.pass_on(data)
            if shown is not None:
                self._reply.send(shown)
                return
        if self._decoder is not None:
            try:
                data = self._decoder.feed(data)
            except Undecodable:
                self.broken("undecodable")
                return
        if self._fault:
            self._said += data[: _FAULT_BYTES - len(self._said)]
            if len(self._said) >= _FAULT_BYTES:
                self._end_fault()
        elif framing is not None and data:
            self._carry_out(framing.feed, data)

    def end(self) -> None:
        """The answer is whole."""
        self._end_fault()
        if self._framing is not None and not self._over.done():
            self._carry_out(self._framing.feed_end)

    def _end_fault(self) -> None:
        """What the engine says of its failure is here, or late."""
        if self._fault:
            self._end_attempt(AttemptFailed(self._fault, said=said_in(bytes(self._said))))

    def broken(self, reason: str) -> None:
        """The connection was lost, or is given up."""
        self._end_fault()
        if self._over.done():
            return
        if self._framing is None:
            self._end_attempt(AttemptFailed(reason))
        else:
            self._carry_out(self._framing.feed_break, reason)

    # --- what becomes of it ---

    @property
    def response_id(self) -> str:
        """The id of the response, where it has come and the API keeps responses."""
        return self._framing.response_id if self._framing is not None else ""

    def _carry_out(self, feed: Callable[..., list[Event]], *fed: object) -> None:
        framing = self._framing
        assert framing is not None
        try:
            for event in feed(*fed):
                if type(event) is Lines:
                    if not self._begun:
                        self._start_stream()
                    self._reply.send(event.data)
                else:
                    self._take(event, framing)
        except Exception as error:
            self._end_attempt(error)
        else:
            if framing.ended:
                self._end_attempt(None)

    def _take(self, event: Event, framing: Framing) -> None:
        match event:
            case Usage():
                self._note_usage(event)
            case End(data, truncated):
                self.result.truncated = truncated
                self.result.finished = not self._broken
                self._end_answer(data)
            case Broken():
                if not self._begun and not self.result.continued and event.told is not None:
                    self._refuse(event.told)
                    return
                self._broken = True
                self._note_break(event)
                if framing.ended:
                    self._tell_break(event)
            case TooLong():
                raise _too_long()

    def _end_attempt(self, failure: Exception | None) -> None:
        if not self._over.done():
            self._failure = failure
            self._over.set_result(None)

    def _start_stream(self) -> None:
        self._begun = True
        self.result.first_byte_unix_s = time.time()
        self._started(self._placement, self._progress is not None)
        if not self._reply.started:
            self._reply.start(self.result.status, self._response_headers(), has_length=False)

    def _end_answer(self, data: bytes) -> None:
        status = self.result.status
        if not self._streamed and not self._begun:
            length = (b"content-length", b"%d" % len(data))
            headers = [*self._response_headers(), length]
            if status >= 400 and not self._is_unknown(data):
                self._look_elsewhere(f"http_{status}", Refusal(status, headers, data))
            self._reply.start(status, headers, has_length=True)
        elif not self._begun:
            self._start_stream()
        self._reply.end(data)

    def _refuse(self, told: Told) -> None:
        """A stream began with an error: the client gets it as if it were the engine's answer.

        Raises `AttemptFailed` where another engine may do better.
        """
        status = self.result.status = told.status
        if status >= 500 or status in _FAULTS:
            raise AttemptFailed("error_event", said=told.message)
        headers = [each for each in self._response_headers() if each[0] not in _OF_A_BODY]
        headers += [_JSON, (b"content-length", b"%d" % len(told.body))]
        self._look_elsewhere("error_event", Refusal(status, headers, told.body))
        self.result.finished = True
        self._reply.start(status, headers, has_length=True)
        self._reply.end(told.body)

    def _look_elsewhere(self, reason: str, refusal: Refusal) -> None:
        """Raise `AttemptFailed` where another engine may do what this one refuses."""
        unfit = unfit_of(refusal.status, refusal.body, self._placement)
        if unfit:
            raise CannotServe(unfit, refusal)
        if refusal.status in _REFUSALS:
            raise AttemptFailed(reason, refusal)

    def _is_unknown(self, data: bytes) -> bool:
        """vLLM has no such path for its model: so say all engines that serve it."""
        return not self._request.endpoint.generates and data == _UNKNOWN_PATH

    def _note_break(self, broken: Broken) -> None:
        """Raise `AttemptFailed` for an answer of which the client has seen nothing."""
        if not self._begun:
            raise AttemptFailed(broken.reason, said=broken.told.message if broken.told else "")
        logger.warning(
            "%s broke off after %s%d tokens: %s%s",
            self._placement.instance.config.instance_id,
            "" if broken.exact else "at least ",
            broken.tokens_out,
            broken.reason,
            f": {broken.told.message}" if broken.told else "",
            extra=about(self._request_id),
        )

    def _tell_break(self, broken: Broken) -> None:
        """The engine was lost: raise `BrokenOff`, or end the stream with an error event."""
        self.result.broken = True
        said = broken.told.message if broken.told else ""
        if self._progress is not None and self._progress.can_go_on:
            raise BrokenOff(broken.reason, said=said)
        self.result.abandoned = True
        if not self._streamed:  # a part of a long answer: nothing in it could tell
            self._reply.break_off()
            return
        self._reply.send(b"\n")  # closes an event that had come as far as its data
        self._reply.fail(with_text(engine_lost(), said), broken.next_event)

    def _note_usage(self, usage: Usage) -> None:
        # Anthropic's API tells the one at the beginning of a stream, the other at its end.
        self.result.prompt_tokens = usage.prompt_tokens or self.result.prompt_tokens
        self.result.output_tokens = usage.output_tokens
        if usage.cached_tokens is not None:
            self.result.cached_tokens = usage.cached_tokens

    def _request_headers(self) -> dict[str, str]:
        headers = {"x-request-id": self._request_id, **self._forwarded_headers}
        rank = self._placement.instance.config.rank
        if rank is not None:
            headers[RANK_HEADER] = str(rank)
        if self._placement.spec.priority != self._request.priority:
            headers[PRIORITY_HEADER] = str(self._placement.spec.priority)
        return headers

    def _response_headers(self) -> list[tuple[bytes, bytes]]:
        headers = returned(self._engine_headers)
        headers.append((b"x-request-id", self._request_id.encode()))
        headers += [(n.encode(), v.encode()) for n, v in self._placement.headers().items()]
        if self._request.grant is not None:
            limits = self._request.grant.headers()
            headers = [each for each in headers if b"ratelimit" not in each[0]]  # its own
            headers += [(name.encode(), value.encode()) for name, value in limits.items()]
        return headers


def engine_lost() -> ApiError:
    """The error that ends a stream with which no engine goes on."""
    return ApiError(502, "the engine failed in mid-answer", code="engine_lost")


def _too_long() -> ApiError:
    return ApiError(
        502, f"the answer is longer than {LONGEST_BODY_BYTES} bytes", code="answer_too_long"
    )
