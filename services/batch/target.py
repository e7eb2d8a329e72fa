"""A client of the schedulers, or of any OpenAI endpoint, that answer a batch's requests."""

import itertools
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import aiohttp

from foretell.batch.release import OnlineSeen
from foretell.batch.states import Batch
from foretell.model import OFFLINE_PRIORITY
from foretell.services.process.peer import read_bounded
from foretell.services.process.traffic import Traffic

_HEADERS = {
    "content-type": "application/json",
    "x-vllm-priority": str(OFFLINE_PRIORITY),
    # Offline requests have no targets, whatever the cluster's are.
    "x-foretell-ttft-target-ms": "0",
    "x-foretell-tpot-target-ms": "0",
    "x-foretell-when-late": "serve",
}
_AGAIN = frozenset((401, 408, 409, 425, 429, 502, 503, 504))
"""Statuses that do not depend on the request. 401: the secret differs, or is not there yet."""
_MOST_ANSWER_BYTES = 64 << 20
_TOO_LONG = b'{"error": {"message": "the answer is too long to be kept"}}'
_LONGEST_WAIT_S = 60.0
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=10.0, sock_read=3600.0)


class BatchAnswer(NamedTuple):
    """An engine's answer to one request."""

    status: int
    request_id: str
    body: bytes


class TryAgain(Exception):
    """The request got no answer and can be retried, not before `after_s` seconds."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class Endpoints:
    """Schedulers, used in turn. Each request may go to any of them."""

    def __init__(self, urls: Sequence[str], traffic: Traffic, *, api_key: str = "") -> None:
        """`api_key` is for endpoints that do not know the secret of `traffic`."""
        assert urls, "somebody must answer"
        self._urls = itertools.cycle([url.rstrip("/").removesuffix("/v1") for url in urls])
        self._traffic = traffic
        self._online = OnlineSeen()
        self._own = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=_TIMEOUT,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def models(self, tenant: str) -> Collection[str] | None:
        """The models that a tenant may ask for; raises `TryAgain`."""
        status, found = await self._get("/v1/models", tenant)
        data = found.get("data")
        if status != 200 or not isinstance(data, list) or not data:
            raise TryAgain(f"the models are not known: status {status}")
        return {str(card.get("id")) for card in data if isinstance(card, dict)}

    def expects_online(self, status: dict[str, Any]) -> bool:
        """Whether online requests are expected, given this and earlier statuses of schedulers."""
        arrived = status.get("demand", {}).get("arrived_total", 0)
        return self._online.expected(str(status.get("replica_id")), arrived, time.monotonic())

    async def status(self) -> dict[str, Any] | None:
        """The status of a scheduler; None: it is no scheduler, or does not answer."""
        try:
            status, found = await self._get("/status", "")
        except TryAgain:
            return None
        return found if status == 200 else None

    async def send(self, batch: Batch, body: bytes, request_id: str) -> BatchAnswer:
        """Send a request and return its answer; raises `TryAgain`."""
        headers = {**_HEADERS, **self._as(batch.tenant), "x-request-id": request_id}
        url = f"{next(self._urls)}{batch.endpoint}"
        try:
            async with self._session.post(url, data=body, headers=headers) as answer:
                if answer.status in _AGAIN:
                    why = f"status {answer.status}"
                    raise TryAgain(why, _seconds(answer.headers.get("retry-after", "")))
                try:
                    raw = await read_bounded(answer, _MOST_ANSWER_BYTES)
                except ValueError:
                    raw = _TOO_LONG
                given = answer.headers.get("x-request-id", request_id)
                return BatchAnswer(answer.status, given, raw)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise TryAgain(f"{type(error).__name__}: {error}") from error

    async def _get(self, path: str, tenant: str) -> tuple[int, dict[str, Any]]:
        url = f"{next(self._urls)}{path}"
        try:
            timeout = aiohttp.ClientTimeout(total=10.0)
            headers = self._as(tenant)
            async with self._session.get(url, headers=headers, timeout=timeout) as answer:
                found = await answer.json(content_type=None)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise TryAgain(f"{type(error).__name__}: {error}") from error
        return answer.status, found if isinstance(found, dict) else {}

    def _as(self, tenant: str) -> dict[str, str]:
        return self._own or self._traffic.headers(tenant)


def _seconds(text: str) -> float:
    return min(_LONGEST_WAIT_S, float(text)) if text.isascii() and text.isdigit() else 0.0
