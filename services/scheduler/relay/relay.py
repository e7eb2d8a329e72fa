"""Answers requests: try engines until one answers, and account for what happened.

Nothing is sent to the client before the engine's first line of output is here, so an attempt
that fails before it can be repeated on another engine without the client noticing. After it another
engine can go on with most streams.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial

from foretell.services.process.logs import about
from foretell.services.scheduler.api.errors import (
    CLIENT_CLOSED_REQUEST,
    ApiError,
    internal_error,
)
from foretell.services.scheduler.api.headers import forwarded
from foretell.services.scheduler.api.parsing import PRIORITY_HEADER, ApiRequest
from foretell.services.scheduler.api.surface import Endpoint
from foretell.services.scheduler.http.exchange import Answering, ClientLeft, Exchange
from foretell.services.scheduler.lifecycle.context import RequestContext, Shared
from foretell.services.scheduler.placing.attempt import Attempt
from foretell.services.scheduler.relay.continuation import Progress, can_continue, progress_of
from foretell.services.scheduler.relay.held import HeldStreams, KeptAlive, is_resumable
from foretell.services.scheduler.relay.sse import with_text
from foretell.services.scheduler.relay.transfer import (
    AttemptFailed,
    FieldsRefused,
    Refusal,
    TakenBack,
    Transfer,
    engine_lost,
)
from foretell.services.scheduler.relay.transport import EngineClient

logger = logging.getLogger(__name__)


class Relay:
    def __init__(self, shared: Shared, engines: EngineClient, keep_alive_s: float = 0.0) -> None:
        """A stream gets a comment after `keep_alive_s` of silence; 0: it does not."""
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
            request = await context.accept(await exchange.body(self._shared.max_body_bytes))
            status = await self._deliver(request, context, exchange)
        except ApiError as error:
            status = error.status
            raise
        except ClientLeft:
            status = CLIENT_CLOSED_REQUEST
        finally:
            context.end(status)

    async def _deliver(
        self, request: ApiRequest, context: RequestContext, exchange: Exchange
    ) -> int:
        headers, key = forwarded(exchange.headers), context.tenant.key
        if key is not None and key.priority is not None:
            headers[PRIORITY_HEADER] = str(request.priority)
        client: Answering = exchange
        if request.stream and is_resumable(exchange.headers):
            client = self._held.hold(exchange, request.tenant) or exchange
        answer = client
        if request.stream and self._keep_alive_s > 0:
            path = request.endpoint.path
            left = partial(_left, context)
            answer = KeptAlive(client, request.request_id, path, self._keep_alive_s, left)
        try:
            return await Delivery(self._engines, context, headers, answer).run(client)
        finally:
            answer.over()

    async def go_on(self, exchange: Exchange) -> None:
        """A client comes back to its stream. The place in progress is still that of its first
        request, whose body comes again and does not matter."""
        try:
            tenant = self._shared.api_keys.tenant(exchange.headers)
            await exchange.body(self._shared.max_body_bytes)
            await self._held.go_on(exchange, tenant.name)
        except ApiError as error:
            self._shared.recorder.count(error.status)
            raise
        except ClientLeft:
            pass  # it may come back


def _left(context: RequestContext) -> str:
    """What is left of an answer, by what its client was told of it."""
    return context.attempt.left(time.time()) if context.attempt is not None else ""


class Delivery:
    def __init__(
        self,
        engines: EngineClient,
        context: RequestContext,
        headers: Mapping[str, str],
        answer: Answering,
    ) -> None:
        self._engines = engines
        self._context = context
        self._headers = headers
        self._answer = answer
        self._progress: Progress | None = None
        """What the client has got, where another engine could go on with it."""

    async def run(self, client: Answering) -> int:
        """Answer, until the answer has ended or `client` has left; the status that counts."""
        if client.left:
            raise ClientLeft
        work = asyncio.current_task()
        assert work is not None
        left = False

        def leave() -> None:
            nonlocal left
            left = work.cancel()

        client.on_left = leave
        try:
            await self._deliver()
        except asyncio.CancelledError:
            if not left:
                raise  # it is the server that ends
            work.uncancel()
            return CLIENT_CLOSED_REQUEST
        finally:
            client.on_left = None
        return self._answer.status

    async def _deliver(self) -> None:
        """Send the answer or an error; raises nothing but a cancellation."""
        answer, request = self._answer, self._context.request
        try:
            await self._try_engines()
        except Refusal as refusal:
            answer.start(refusal.status, refusal.headers, has_length=True)
            answer.end(refusal.body)
        except ApiError as error:
            answer.end_with(error, request.endpoint.path, request.request_id)
        except Exception:  # the last line of defence: even a defect of ours must end as an answer
            logger.exception("the scheduler failed", extra=about(request.request_id))
            answer.end_with(internal_error(), request.endpoint.path, request.request_id)

    async def _try_engines(self) -> None:
        """Try one engine after the other; raises `Refusal` or `ApiError` where none answers."""
        context = self._context
        attempt = await context.place()
        goes_on = can_continue(context.request, attempt.spec.prompt_tokens)
        while True:
            if not self._answer.begun:  # what nobody saw does not count
                follows = goes_on and attempt.instance.takes_fields
                self._progress = progress_of(context.request) if follows else None
            try:
                await self._try_engine(attempt)
            except AttemptFailed as failure:
                attempt = await self._retry(failure)
            except TakenBack:
                attempt = await context.place_again()
            else:
                return

    async def _try_engine(self, attempt: Attempt) -> None:
        """Make one attempt, to its end or a break after its first token."""
        context = self._context
        attempt.continued = self._answer.begun
        headers = {**self._headers, **context.begin_attempt()}
        transfer = Transfer(context, attempt, headers, self._answer, self._progress)
        try:
            try:
                await transfer.run(self._engines)
            except FieldsRefused:
                attempt.instance.refuses_fields, self._progress = True, None
                transfer = Transfer(context, attempt, headers, self._answer)
                try:
                    await transfer.run(self._engines)
                finally:
                    attempt.instance.judge_fields(attempt.status)
            context.placer.kept.learn(
                transfer.response_id, context.request.tenant, attempt.instance_id
            )
        except asyncio.CancelledError:
            attempt.abandoned = True
            raise
        finally:
            context.end_attempt()

    async def _retry(self, failure: AttemptFailed) -> Attempt:
        """The next attempt; raises `ApiError`, or `Refusal`, where there is none."""
        context, judgement, refusal = self._context, failure.judgement, failure.refusal
        begun = self._answer.begun
        output_tokens = self._progress.output_tokens if self._progress and begun else 0
        try:
            return await context.retry(judgement, output_tokens, failure.said)
        except ApiError as error:
            said = "" if judgement.is_about_us else failure.said
            if begun and not judgement.unfit:
                raise with_text(engine_lost(), said) from error
            agree = len({each.reason for each in context.judgements}) == 1
            if refusal is not None and (judgement.unfit or agree):
                raise refusal from error
            if error.code == "engine_failed":
                with_text(error, said)
            raise
