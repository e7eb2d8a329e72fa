"""One attempt: sends the request to the chosen engine, and the answer to the client."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from foretell.answer.continuation import Progress
from foretell.answer.framing import (
    LONGEST_BODY_BYTES,
    TOO_LONG,
    Broken,
    End,
    Event,
    Lines,
    Usage,
    WholeFraming,
)
from foretell.answer.judgement import (
    AnswerJudgement,
    Verdict,
    judge,
    lost,
    may_refuse_fields,
)
from foretell.answer.sse import Reported, said_in, with_text
from foretell.answer.stream import StreamFraming
from foretell.openai.errors import ApiError
from foretell.openai.headers import returned
from foretell.services.http.exchange import Answering
from foretell.services.process.logs import about
from foretell.services.scheduler.lifecycle.context import RequestContext
from foretell.services.scheduler.placing.attempt import Attempt
from foretell.services.scheduler.relay.transport import EngineClient, Unreachable

logger = logging.getLogger(__name__)

_FAULT_BYTES = 1 << 16
"""Most bytes read of an engine's error body, for its text."""
_FAULT_WAIT_S = 0.5
"""Longest wait for that body, since another engine is tried only afterwards."""
_JSON = (b"content-type", b"application/json")
_OF_A_BODY = (b"content-type", b"content-encoding")


class Refusal(NamedTuple):
    """An engine's error answer, which the client gets if no other engine answers differently."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class AttemptFailed(Exception):
    """Another engine may do better: the client has seen nothing, or the answer can be continued."""

    def __init__(
        self, judgement: AnswerJudgement, refusal: Refusal | None = None, said: str = ""
    ) -> None:
        super().__init__(judgement.reason)
        self.judgement = judgement
        self.refusal = refusal
        self.said = said
        """The engine's error message, in one line."""


class TakenBack(Exception):
    """The request was recalled from its engine's queue, to be placed again."""


class Transfer:
    """Carries one attempt to its engine, and the answer back as it comes. It is the listener of the
    engine's connection, and writes to the client at once, within the connection's callback."""

    def __init__(
        self,
        context: RequestContext,
        attempt: Attempt,
        headers: Mapping[str, str],
        reply: Answering,
        progress: Progress | None = None,
    ) -> None:
        """`progress`: of the answer, so that another engine can continue it; None: none could. If
        the reply has begun, this attempt continues it."""
        self._context = context
        self._request = context.request
        self._attempt = attempt
        self._headers = headers
        self._reply = reply
        self._progress = progress
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failure: Exception | None = None
        self._framing: StreamFraming | WholeFraming | None = None
        self._fault: AnswerJudgement | None = None
        """Why the attempt has failed, while the body of the engine's error is read."""
        self._said = bytearray()
        self._engine_headers: Mapping[bytes, bytes] = {}
        self._streamed = False
        self._watch: Callable[[bytes, int], None] | None = None
        """Gets the bytes of the stream if the engine is observed."""
        self._begun = False
        self._pass_on: Callable[[bytes], bytes | None] | None = None
        """`pass_on` of a stream that has begun."""
        self._broken = False
        self._fields_refused = False
        """The engine may have refused the request for the fields that were added to it."""

    async def run(self, engines: EngineClient) -> None:
        """Relay the answer to its end, or to a break after its first token. Raises `AttemptFailed`
        if another engine may do better, `TakenBack` if the request is to be sent elsewhere, and
        `ApiError` if no engine could do better."""
        context, attempt, progress = self._context, self._attempt, self._progress
        request, instance = self._request, attempt.instance
        attempt.carrier = self
        output_ids: list[list[int]] = []
        if attempt.continued:
            if not instance.takes_fields or progress is None:
                raise AttemptFailed(lost("cannot_go_on"))
            progress.begin_again()
            output_ids = progress.to_resume
        body = context.body(with_ids=progress is not None, output_ids=output_ids)
        if request.stream:
            self._watch = context.placer.predictors.watch(instance, attempt.spec)
        path, kind = request.endpoint.path, request.content_type
        try:
            upstream = await engines.post(
                instance, path, body, self._headers, self, content_type=kind
            )
        except Unreachable as error:
            raise AttemptFailed(lost(error.reason)) from error
        self._reply.flow(upstream.pause, upstream.resume)
        try:
            await self._over
        finally:
            upstream.release()
        if self._failure is not None:
            raise self._failure
        if self._fields_refused:
            instance.refuses_fields = True
            try:
                await Transfer(context, attempt, self._headers, self._reply).run(engines)
            finally:
                instance.judge_fields(attempt.status)
        elif self._framing is not None and self._framing.response_id:
            known = self._framing.response_id, request.tenant, attempt.instance_id
            context.placer.kept.learn(*known)

    # --- called by the placer ---

    def take_back(self) -> bool:
        """End the attempt, so that the engine stops; False once its answer has begun or ended."""
        whole = self._framing is not None and not self._streamed
        if self._over.done() or self._begun or whole:
            return False
        self._end_attempt(TakenBack())
        return True

    def give_up(self) -> None:
        """The engine is silent: end the attempt, unless no other engine could continue it."""
        if not self._begun:
            self._end_attempt(AttemptFailed(lost("silent")))
        elif self._progress is not None and self._progress.can_go_on:
            self.broken("silent")

    # --- called by the connection ---

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        if self._over.done():
            return  # it was taken back: another engine's answer goes to the client
        self._attempt.status = status
        encoding = headers.get(b"content-encoding", b"").strip().lower()
        is_plain = encoding in (b"", b"identity")
        if status >= 300 or status < 200:
            judgement = judge(status, continued=self._attempt.continued)
            if judgement.verdict is Verdict.FAULT:
                if not is_plain:  # its text cannot be read
                    self._end_attempt(AttemptFailed(judgement))
                    return
                self._fault = judgement
                asyncio.get_running_loop().call_later(_FAULT_WAIT_S, self._end_fault)
                return
        self._engine_headers = headers
        self._streamed = self._request.stream and status < 400
        endpoint = self._request.endpoint
        if not is_plain:
            self._begin_opaque(encoding)
        elif self._streamed:
            self._framing = StreamFraming(self._progress, endpoint.opening)
        else:
            is_bytes = headers.get(b"content-type", b"").startswith(b"application/octet-stream")
            any_form = is_bytes and not endpoint.generates
            self._framing = WholeFraming(any_form=any_form or endpoint.is_form)

    def _begin_opaque(self, encoding: bytes) -> None:
        """Pass the answer on unchanged, with the header that names its encoding."""
        logger.warning(
            "%s answers in the encoding %r, although it was asked for none",
            self._attempt.instance_id,
            encoding.decode("latin-1"),
            extra=about(self._request.request_id),
        )
        if self._attempt.continued:
            self._end_attempt(AttemptFailed(lost("encoded")))
        else:
            self._progress = None
            self._framing = WholeFraming(any_form=True, at_once=self._streamed)

    def data(self, data: bytes) -> None:
        watch = self._watch if self._streamed else None
        shown = self._pass_on(data) if self._pass_on is not None else None
        if shown is not None:
            self._reply.write(shown)
        elif not self._over.done():
            self._take(data)
        if watch is not None:
            stated = self._progress.stated_tokens if self._progress is not None else 0
            watch(data, stated or self._attempt.output_tokens)

    def _take(self, data: bytes) -> None:
        if self._fault is not None:
            self._said += data[: _FAULT_BYTES - len(self._said)]
            if len(self._said) >= _FAULT_BYTES:
                self._end_fault()
        elif self._framing is not None:
            self._carry_out(self._framing.feed, data)

    def end(self) -> None:
        self._end_fault()
        if self._framing is not None and not self._over.done():
            self._carry_out(self._framing.feed_end)

    def _end_fault(self) -> None:
        """End the attempt: the body of the engine's error is read, or late."""
        if self._fault is not None:
            self._end_attempt(AttemptFailed(self._fault, said=said_in(bytes(self._said))))

    def broken(self, reason: str) -> None:
        """The connection was lost or given up."""
        self._end_fault()
        if self._over.done():
            return
        if self._framing is None:
            self._end_attempt(AttemptFailed(lost(reason)))
        else:
            self._carry_out(self._framing.feed_break, reason)

    # --- the outcome ---

    def _carry_out(self, feed: Callable[..., list[Event]], *fed: object) -> None:
        try:
            for event in feed(*fed):
                if type(event) is Lines:
                    if not self._begun:
                        self._start_stream()
                    self._reply.write(event.data)
                elif type(event) is Usage:
                    self._note_usage(event)
                elif type(event) is End:
                    self._end_answer(event)
                elif type(event) is Broken:
                    self._break(event)
        except Exception as error:
            self._end_attempt(error)
        else:
            if self._framing is not None and self._framing.ended:
                self._end_attempt(None)

    def _end_attempt(self, failure: Exception | None) -> None:
        if not self._over.done():
            self._failure = failure
            self._pass_on = self._watch = None
            self._over.set_result(None)

    def _start_stream(self) -> None:
        self._begun = True
        if self._streamed and self._framing is not None:
            self._pass_on = self._framing.pass_on
        self._attempt.first_byte_unix_s = time.time()
        self._context.placer.started(self._context, self._progress is not None)
        if not self._reply.begun:
            self._reply.start(self._attempt.status, self._response_headers(), has_length=False)

    def _end_answer(self, end: End) -> None:
        self._attempt.truncated = end.truncated
        self._attempt.finished = not self._broken
        if self._streamed and not self._begun:
            self._start_stream()
        if self._begun:
            self._reply.end(end.data)
        else:
            self._answer(self._response_headers(), end.data)

    def _refuse(self, reported: Reported) -> None:
        self._attempt.status = reported.status
        headers = [each for each in self._response_headers() if each[0] not in _OF_A_BODY]
        self._answer([*headers, _JSON], reported.body, reported.message)
        self._attempt.finished = True

    def _answer(
        self, headers: list[tuple[bytes, bytes]], body: bytes, reported: str | None = None
    ) -> None:
        """Send a whole answer; raises `AttemptFailed` if another engine may do better.
        `reported`: the error message in the first event of a stream."""
        status, instance = self._attempt.status, self._attempt.instance
        if status >= 400 and reported is None and may_refuse_fields(status, body):
            self._fields_refused = self._request.endpoint.generates and instance.takes_fields
            if self._fields_refused:
                return
        headers.append((b"content-length", b"%d" % len(body)))
        asked, as_event = self._context.asked, reported is not None
        judgement = judge(status, body, asked=asked(), as_event=as_event) if status >= 400 else None
        if judgement is not None and judgement.may_be_repeated:
            is_fault = judgement.verdict is Verdict.FAULT
            refusal = None if is_fault else Refusal(status, headers, body)
            raise AttemptFailed(judgement, refusal, (reported or "") if is_fault else "")
        self._reply.start(status, headers, has_length=True)
        self._reply.end(body)

    def _break(self, event: Broken) -> None:
        """Handle a lost engine: raise `AttemptFailed` if another one may do better, or end the
        stream with an error event. After an engine's own error event, more lines may follow."""
        attempt, reported = self._attempt, event.reported
        said = reported.message if reported is not None else ""
        if not self._begun:
            if event.reason == TOO_LONG:
                text = f"the answer is longer than {LONGEST_BODY_BYTES} bytes"
                raise ApiError(502, text, code="answer_too_long")
            if reported is None or attempt.continued:
                raise AttemptFailed(lost(event.reason), said=said)
            self._refuse(reported)
            return
        self._broken = True
        logger.warning(
            "%s broke off in mid-answer: %s%s",
            attempt.instance_id,
            event.reason,
            f": {said}" if said else "",
            extra=about(self._request.request_id),
        )
        if self._framing is None or not self._framing.ended:
            return
        attempt.broken = True
        if self._progress is not None and self._progress.can_go_on:
            raise AttemptFailed(lost(event.reason), said=said)
        attempt.abandoned = True
        if not self._streamed:  # a part of a long answer: no error can be sent in it
            self._reply.status = 502
            self._reply.abandon()
            return
        path, request_id = self._request.endpoint.path, self._request.request_id
        self._reply.end_with(with_text(engine_lost(), said), path, request_id, event.next_event)

    def _note_usage(self, usage: Usage) -> None:
        # Anthropic's API sends prompt tokens when a stream begins, and output tokens at its end.
        attempt = self._attempt
        attempt.prompt_tokens = usage.prompt_tokens or attempt.prompt_tokens
        attempt.output_tokens = usage.output_tokens
        if usage.cached_tokens is not None:
            attempt.cached_tokens = usage.cached_tokens

    def _response_headers(self) -> list[tuple[bytes, bytes]]:
        headers = returned(self._engine_headers)
        headers.append((b"x-request-id", self._request.request_id.encode()))
        headers += [(n.encode(), v.encode()) for n, v in self._attempt.headers().items()]
        if self._context.grant is not None:
            limits = self._context.grant.headers()
            headers = [each for each in headers if b"ratelimit" not in each[0]]  # the engine's own
            headers += [(name.encode(), value.encode()) for name, value in limits.items()]
        return headers


def engine_lost() -> ApiError:
    """The error that ends a stream that no engine continues."""
    return ApiError(502, "the engine failed in mid-answer", code="engine_lost")
