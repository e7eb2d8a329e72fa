"""One request from its acceptance to its end, for its handler: the relay or a gateway's exchange.

The handler carries bytes. What both have in common is here: placement, the outcome of attempts, and
their records.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from foretell.answer.judgement import AnswerJudgement, Asked, Verdict
from foretell.openai.errors import (
    CLIENT_CLOSED_REQUEST,
    ApiError,
    model_not_found,
)
from foretell.openai.headers import RANK_HEADER
from foretell.openai.kept import response_id
from foretell.openai.parsing import (
    JSON,
    PRIORITY_HEADER,
    ApiRequest,
    Spliced,
    for_engine,
    parse,
)
from foretell.openai.shortened import LARGE_BYTES
from foretell.openai.slo import NO_TERMS, SloUnattainable, Terms, terms_of
from foretell.openai.surface import Endpoint
from foretell.services.http.exchange import UNCOUNTED_BYTES
from foretell.services.process.logs import about
from foretell.services.scheduler.ids import request_id_of
from foretell.services.scheduler.lifecycle.bodies import long_values
from foretell.services.scheduler.placing.attempt import Attempt
from foretell.services.scheduler.placing.instance import PoolInstance
from foretell.services.scheduler.placing.placer import Placer
from foretell.services.scheduler.placing.placing import Placing
from foretell.services.scheduler.placing.pool import Pool
from foretell.services.scheduler.record.recorder import Recorder
from foretell.services.scheduler.record.tracing import RequestSpans, Tracing
from foretell.services.scheduler.tenants.auth import ApiKeys
from foretell.tenants.in_progress import InProgress

logger = logging.getLogger(__name__)

_unguessable = partial(secrets.token_hex, 16)
_MAY_HAVE_GENERATED = (CLIENT_CLOSED_REQUEST, 502)
"""Error statuses after which an engine may have generated tokens nevertheless."""


_MOST_BODY_BYTES = 768 << 20
"""Most bytes of all bodies in progress. More than half of the 2 GiB that the Helm chart gives a
scheduler is left for their parsed JSON and everything else."""


def bodies_in_progress(max_body_bytes: int) -> InProgress:
    """Limits the bytes of bodies in progress; there is room for at least four of the longest."""
    return InProgress(
        max(_MOST_BODY_BYTES, 4 * max_body_bytes),
        what="bytes of request bodies",
        refusal=(503, "too_many_body_bytes"),
    )


@dataclass(slots=True)
class Shared:
    placer: Placer
    recorder: Recorder
    pool: Pool
    api_keys: ApiKeys
    in_progress: InProgress
    bodies: InProgress
    """The bytes of bodies in progress."""
    max_body_bytes: int
    terms: Terms = NO_TERMS
    """Targets of requests that state none of their own."""
    tracing: Tracing | None = None
    accepted_total: int = 0
    """Number of requests that were found valid."""


class RequestContext(Placing):
    """One request: what is known of it, the resources it holds, and its latest attempt."""

    ended = False
    _model = ""
    _held_bytes = 0
    """Bytes of its body that are counted in `Shared.bodies`."""

    def __init__(self, shared: Shared, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        """Admit a request whose head has come; raises `ApiError` if its head is not acceptable."""
        self.endpoint = endpoint
        self.request_id = request_id_of(headers)
        self.judgements: list[AnswerJudgement] = []
        """The judgements of failed attempts, in order."""
        self.placer = shared.placer
        self._shared = shared
        self._headers = headers
        self._is_at_fault = False
        self._spans: RequestSpans | None = None
        try:
            self.tenant = shared.api_keys.tenant(headers)
            self._terms = terms_of(headers, shared.terms, time.time())
            shared.in_progress.take(self.tenant.name)
            try:
                self.grant = self.tenant.place()
            except ApiError:
                shared.in_progress.give_back(self.tenant.name)
                raise
        except ApiError as error:
            shared.recorder.count(error.status)
            raise

    async def accept(self, body: bytes, among: frozenset[str] | None = None) -> ApiRequest:
        """Parse its body; raises `ApiError` if the body is invalid, or for a model that no engine
        serves. `among`: the only instances that may answer; None: any."""
        shared, tenant, headers = self._shared, self.tenant, self._headers
        if len(body) > UNCOUNTED_BYTES:
            self.hold(len(body))
        limits, pool, is_form = tenant.limits, shared.pool, self.endpoint.is_form
        request = parse(
            self.endpoint,
            body,
            await long_values(body) if len(body) > LARGE_BYTES and not is_form else None,
            content_type=headers.get("content-type", "") if is_form else JSON,
            request_id=self.request_id,
            tenant=tenant.name,
            terms=self._terms,
            only=pool.only_model,
            priority=headers.get(PRIORITY_HEADER, ""),
            least_priority=limits.priority if limits is not None else None,
            among=among,
        )
        if len(body) > LARGE_BYTES:
            await asyncio.sleep(0)  # let other tasks run before it is serialized again
        tenant.check_model(request.model)
        if not pool.may_serve(request.model):
            raise model_not_found(request.model)
        self.request, self._model = request, request.model
        shared.accepted_total += 1
        if shared.tracing is not None:
            self._spans = shared.tracing.request(request, headers)
        return request

    async def place(self, *, recallable: bool = True) -> Attempt:
        """Return the first attempt; raises `ApiError` if the request is refused. `recallable`: its
        handler will set `Attempt.carrier`."""
        try:
            return await self.placer.place(self, recallable=recallable)
        except SloUnattainable as error:
            self._shared.recorder.record_rejection(self.request, error)
            raise

    async def retry(
        self, judgement: AnswerJudgement, output_tokens: int = 0, said: str = ""
    ) -> Attempt:
        """Return the attempt after one that failed; raises `ApiError` if there is none.
        `output_tokens`: tokens of the answer that the client has; `said`: the engine's error."""
        self.failed(judgement, said=said)
        self._is_at_fault = False
        return await self.placer.retry(self, output_tokens, judgement.unfit)

    def asked(self) -> Asked:
        model = self.request.model
        longest = self._sent().instance.lengths.get(model)
        return Asked(self.need, model, longest, self.endpoint.generates)

    def begin_attempt(self) -> dict[str, str]:
        """Begin the latest attempt; return the headers for its engine besides the client's."""
        attempt = self._sent()
        headers = {"x-request-id": self.request_id}
        if attempt.instance.config.rank is not None:
            headers[RANK_HEADER] = str(attempt.instance.config.rank)
        limits = self.tenant.limits
        is_bound = limits is not None and limits.priority is not None
        if is_bound or attempt.spec.priority != self.request.given_priority:
            headers[PRIORITY_HEADER] = str(attempt.spec.priority)
        if self._spans is not None:
            headers |= self._spans.attempt(attempt)
        return headers

    def hold(self, body_bytes: int) -> None:
        """Count `body_bytes` as held for its body; raises `ApiError` if the bodies of its tenant or
        of all tenants leave no room."""
        if body_bytes > self._held_bytes:
            self._shared.bodies.take(self.tenant.name, body_bytes - self._held_bytes)
            self._held_bytes = body_bytes

    def drop_body(self) -> None:
        """Drop the body, which is not sent to any engine again."""
        self.request = self.request._replace(raw=b"")
        self._give_body_back()

    def _give_body_back(self) -> None:
        if self._held_bytes:
            self._shared.bodies.give_back(self.tenant.name, self._held_bytes)
            self._held_bytes = 0

    def body(
        self, *, with_ids: bool = False, output_ids: Sequence[Sequence[int]] = ()
    ) -> bytes | Spliced:
        """The body for the engine of the latest attempt; see `for_engine`."""
        attempt = self._sent()
        return for_engine(
            self.request,
            attempt.spec.request_id,
            attempt.spec.length.expected_tokens,
            with_ids=with_ids,
            output_ids=output_ids,
            response_id=response_id(self.request, attempt.instance_id, _unguessable),
            as_it_is=not attempt.instance.takes_fields,
        )

    def end_attempt(self) -> None:
        attempt = self._sent()
        attempt.carrier = None
        attempt.ended_unix_s = time.time()
        if self._spans is not None:
            self._spans.attempt_ended(attempt)
        self._shared.recorder.record(self.request, self.grant, attempt)

    def failed(self, judgement: AnswerJudgement, said: str = "") -> None:
        """Note that the latest attempt failed; count it if that is its engine's fault."""
        attempt = self._sent()
        self.judgements.append(judgement)
        in_mid_answer = attempt.first_byte_unix_s > 0
        if judgement.counts:
            self._is_at_fault = True
            name, reason = attempt.instance_id, judgement.reason
            self._shared.recorder.count_failure(name, reason, in_mid_answer=in_mid_answer)
        why = judgement.unfit or said
        logger.log(
            logging.INFO if judgement.verdict is Verdict.UNFIT else logging.WARNING,
            "attempt %d on %s failed: %s%s",
            attempt.number,
            attempt.instance_id,
            judgement.reason,
            f": {why}" if why else "",
            extra=about(self.request_id),
        )

    def sent_elsewhere(self, instance: PoolInstance) -> Attempt:
        """Begin an attempt on another instance: a gateway tried the chosen one in vain."""
        another = self.placer.sent_elsewhere(self, instance)
        self.end_attempt()
        self.attempt = another
        self.begin_attempt()
        return another

    def end(self, status: int) -> None:
        """End the request, whose client got `status`; only the first call counts."""
        if self.ended:
            return
        self.ended, attempt = True, self.attempt
        self._shared.in_progress.give_back(self.tenant.name)
        self._give_body_back()
        if self.grant is not None:
            self.grant.end()
        if self.is_sent and attempt is not None:
            self.is_sent = False
            broken = attempt.broken or self._is_at_fault
            self.placer.end(self, broken=broken, answered=attempt.finished)
        if self.grant is not None and status >= 400 and status not in _MAY_HAVE_GENERATED:
            self.grant.settle(0)
        self._shared.recorder.count(status, self._model, attempt)
        if self._spans is not None:
            self._spans.end(status)

    def _sent(self) -> Attempt:
        assert self.attempt is not None, "no attempt was made"
        return self.attempt
