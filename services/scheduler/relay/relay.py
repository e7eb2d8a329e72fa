"""Answers requests: tries engines until one answers, and records what happened.

Nothing is sent to the client before the engine's first line of output is here, so an attempt
that fails before it can be repeated on another engine without the client noticing. After it,
another engine can continue most streams.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial

from foretell.answer.continuation import Progress, can_continue, progress_of
from foretell.answer.sse import with_text
from foretell.openai.errors import (
    CLIENT_CLOSED_REQUEST,
    ApiError,
    internal_error,
)
from foretell.openai.headers import forwarded
from foretell.openai.surface import Endpoint
from foretell.services.http.exchange import BODY_DEADLINE_S, Answering, Exchange
from foretell.services.process.logs import about
from foretell.services.scheduler.lifecycle.context import RequestContext, Shared
from foretell.services.scheduler.placing.attempt import Attempt
from foretell.services.scheduler.relay.held import HeldStreams, KeptAlive, is_resumable
from foretell.services.scheduler.relay.transfer import (
    AttemptFailed,
    TakenBack,
    Transfer,
    engine_lost,
)
from foretell.services.scheduler.relay.transport import EngineClient

logger = logging.getLogger(__name__)


class Relay:
    def __init__(self, shared: Shared, engines: EngineClient, keep_alive_s: float = 0.0) -> None:
        """A stream gets a comment after `keep_alive_s` seconds of silence; 0: it gets none."""
        self._shared = shared
        self._engines = engines
        self._keep_alive_s = keep_alive_s
        self._held = HeldStreams()

    async def answer(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Have an engine answer, or raise `ApiError`."""
        context = RequestContext(self._shared, endpoint, exchange.headers)
        exchange.request_id = context.request_id
        status = 500
        try:
            await context.accept(await exchange.body(self._shared.max_body_bytes, context))
            status = await self._deliver(context, exchange)
        except ApiError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            if exchange.left:  # or the server ends
                status = CLIENT_CLOSED_REQUEST
            raise
        finally:
            context.end(status)

    async def _deliver(self, context: RequestContext, exchange: Exchange) -> int:
        """Answer until the answer has ended; return the status to count."""
        request, headers = context.request, forwarded(exchange.headers)
        client: Answering = exchange
        if request.stream and is_resumable(exchange.headers):
            client = self._held.hold(exchange, request.tenant) or exchange
        answer, path = client, request.endpoint.path
        if request.stream and self._keep_alive_s > 0:
            left_of = partial(_left, context)
            answer = KeptAlive(client, request.request_id, path, self._keep_alive_s, left_of)
        try:
            await self._try_engines(context, headers, answer)
        except ApiError as error:
            answer.end_with(error, path, request.request_id)
        except Exception:  # the last line of defence: even a bug must end as an answer
            logger.exception("the scheduler failed", extra=about(request.request_id))
            answer.end_with(internal_error(), path, request.request_id)
        finally:
            answer.over()
        return answer.status

    async def _try_engines(
        self, context: RequestContext, headers: Mapping[str, str], answer: Answering
    ) -> None:
        """Try one engine after the other until one answers; raises `ApiError` if none does.
        `headers`: the client's headers that engines get."""
        progress: Progress | None = None
        """What the client has of the answer; None if another engine could not continue it."""
        first = await context.place()
        goes_on = can_continue(context.request, first.spec.prompt_tokens)
        attempt: Attempt | None = first
        while attempt is not None:
            failure: AttemptFailed | None = None
            attempt.continued = answer.begun
            if not answer.begun:  # the client has nothing yet
                follows = goes_on and attempt.instance.takes_fields
                progress = progress_of(context.request) if follows else None
            sent = {**headers, **context.begin_attempt()}
            try:
                await Transfer(context, attempt, sent, answer, progress).run(self._engines)
                return
            except AttemptFailed as error:
                failure = error
            except TakenBack:
                pass
            except asyncio.CancelledError:
                attempt.abandoned = True
                raise
            finally:
                context.end_attempt()
            if failure is None:
                attempt = await context.placer.place_again(context)
            else:
                output_tokens = progress.output_tokens if progress and answer.begun else 0
                attempt = await _retry(context, failure, answer, output_tokens)

    async def go_on(self, exchange: Exchange) -> None:
        """Serve a client that comes back to its stream. Its first request still holds the place in
        progress. The body is sent again, and is read and ignored."""
        try:
            tenant = self._shared.api_keys.tenant(exchange.headers)
            async for _ in exchange.parts(self._shared.max_body_bytes, BODY_DEADLINE_S):
                pass
            await self._held.go_on(exchange, tenant.name)
        except ApiError as error:
            self._shared.recorder.count(error.status)
            raise


def _left(context: RequestContext) -> str:
    """The remaining latencies of an answer, as text for a comment; "" where not known."""
    return context.attempt.left(time.time()) if context.attempt is not None else ""


async def _retry(
    context: RequestContext, failure: AttemptFailed, answer: Answering, output_tokens: int
) -> Attempt | None:
    """Return the next attempt; None if the client was sent the engines' refusal instead. Raises
    `ApiError` if there is no next attempt."""
    judgement, refusal = failure.judgement, failure.refusal
    try:
        return await context.retry(judgement, output_tokens, failure.said)
    except ApiError as error:
        said = "" if judgement.is_about_us else failure.said
        if answer.begun and not judgement.unfit:
            raise with_text(engine_lost(), said) from error
        agree = len({each.reason for each in context.judgements}) == 1
        if refusal is not None and (judgement.unfit or agree):
            answer.start(refusal.status, refusal.headers, has_length=True)
            answer.end(refusal.body)
            return None
        if error.code == "engine_failed":
            with_text(error, said)
        raise
