"""The autoscaler webhook: posts the desired number to a service that starts and stops instances.

Messages and answers are signed as Standard Webhooks 1.0 specifies: HMAC-SHA256 over id, timestamp
and body; `webhook-signature` holds `v1,` and its base64. The id is the idempotency key: it stays
the same when a message is sent again.
"""

import base64
import hmac
import json
import logging
from dataclasses import dataclass

import aiohttp

from foretell.provision import ProvisionDecision
from foretell.services.process.peer import read_bounded
from foretell.services.provisioner.fleet import WatchedFleet
from foretell.services.provisioner.tuning import TUNING

logger = logging.getLogger(__name__)


class WebhookRefused(ValueError):
    """The message was not accepted, or its answer is not trusted; the text says why."""


@dataclass(slots=True)
class _Message:
    message_id: str
    body: bytes
    desired: int
    attempts: int = 0
    again_s: float = 0.0


class WebhookFleet(WatchedFleet):
    """Instances started and stopped by another service, which is sent the desired number.

    A number is posted until it is accepted, or until there is another one. An answer may say how
    many instances that service was last asked for, as `{"asked_for": 3}`, so that a change made
    there by a person is noticed; it must then be signed. An empty answer only accepts the number.
    """

    def __init__(
        self,
        source: str,
        client: aiohttp.ClientSession,
        give_up_s: float,
        *,
        url: str,
        secret: bytes,
        epoch: int,
    ) -> None:
        super().__init__(source, client, give_up_s)
        self._url, self._secret, self._epoch = url, secret, epoch
        self._numbers = 0
        self._taken: int | None = None
        self._message: _Message | None = None

    async def act(self, decision: ProvisionDecision, now_s: float) -> int:
        """Post the number, unless it was accepted already or its next attempt is not due."""
        if decision.desired == self._taken:
            self._message = None
            return 0
        if self._message is None or self._message.desired != decision.desired:
            self._message = self._compose(decision)
        message = self._message
        if now_s < message.again_s:
            return 0
        try:
            asked_for = await self._post(message, now_s)
        except (ValueError, aiohttp.ClientError, OSError, TimeoutError) as error:
            pause_s = min(TUNING.webhook_pause_s, 2.0**message.attempts)
            message.attempts, message.again_s = message.attempts + 1, now_s + pause_s
            logger.warning("the webhook did not take %d instances: %r", message.desired, error)
            return 1
        self._taken, self._message = message.desired, None
        self.asked_for = asked_for
        return 0

    def _compose(self, decision: ProvisionDecision) -> _Message:
        self._numbers += 1
        body = {
            "desired": decision.desired,
            "because": decision.because,
            "why": decision.why,
            "confidence": decision.confidence,
            "decided_unix_s": decision.at_s,
            "epoch": self._epoch,
        }
        message_id = f"foretell-{self._epoch}-{self._numbers}"
        return _Message(message_id, json.dumps(body).encode(), decision.desired)

    async def _post(self, message: _Message, now_s: float) -> int | None:
        """Return the number that the service was last asked for; None if it does not say so."""
        timestamp = str(int(now_s))
        headers = {
            "content-type": "application/json",
            "idempotency-key": message.message_id,
            "webhook-id": message.message_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": signature(
                self._secret, message.message_id, timestamp, message.body
            ),
        }
        async with self._client.post(
            self._url,
            data=message.body,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(TUNING.webhook_answer_s),
        ) as answer:
            if not 200 <= answer.status < 300:
                raise WebhookRefused(f"status {answer.status}")
            body = await read_bounded(answer, TUNING.webhook_answer_bytes)
            said = {name.lower(): value for name, value in answer.headers.items()}
        return _believed(self._secret, message.message_id, body, said, now_s) if body else None


def signature(secret: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """The value of `webhook-signature`."""
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    digest = hmac.digest(secret, signed, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"


def _believed(
    secret: bytes, message_id: str, body: bytes, headers: dict[str, str], now_s: float
) -> int | None:
    """The number in a signed answer; WebhookRefused if it is forged, late or malformed."""
    timestamp = headers.get("webhook-timestamp", "")
    right = signature(secret, message_id, timestamp, body).encode()
    given = headers.get("webhook-signature", "").encode("utf-8", "replace")
    if not hmac.compare_digest(right, given):
        raise WebhookRefused("the signature of the answer is wrong, or it answers another message")
    try:
        late_s = abs(now_s - float(timestamp))
        asked_for = json.loads(body).get("asked_for")
    except (ValueError, AttributeError, RecursionError) as error:
        raise WebhookRefused(f"the answer makes no sense: {error!r}") from error
    if not late_s <= TUNING.webhook_tolerance_s:
        raise WebhookRefused(f"the answer is {late_s:.0f} s off")
    if asked_for is None:
        return None
    if isinstance(asked_for, bool) or not isinstance(asked_for, int) or asked_for < 0:
        raise WebhookRefused("asked_for must be a number of instances")
    return asked_for
