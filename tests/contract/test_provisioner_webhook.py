"""The autoscaler hook: what is posted, and every kind of wrong answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from foretell.provision import ProvisionDecision
from foretell.services.provisioner import webhook
from foretell.services.provisioner.tuning import TUNING, ProvisionerTuning
from foretell.services.provisioner.webhook import WebhookFleet, signature

SECRET = b"shared"
NOW_S = 1_700_000_000.0

Answer = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


def decision(desired: int) -> ProvisionDecision:
    return ProvisionDecision(NOW_S, desired, "strategy", "for a test", 0.9, 0.0)


def signed(
    request: web.Request,
    body: bytes,
    *,
    secret: bytes = SECRET,
    message_id: str = "",
    at: float = 0.0,
) -> web.Response:
    message_id = message_id or request.headers["webhook-id"]
    timestamp = str(int(NOW_S + at))
    headers = {
        "webhook-timestamp": timestamp,
        "webhook-signature": signature(secret, message_id, timestamp, body),
    }
    return web.Response(body=body, headers=headers)


class Hook:
    """An autoscaler that gives a scripted answer, and records what was posted."""

    def __init__(self) -> None:
        self.answer: Answer = _taken
        self.posted: list[dict[str, object]] = []
        self.ids: list[str] = []
        self.leave: Callable[[], Awaitable[None]]

    async def scale(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        told = request.headers
        right = signature(SECRET, told["webhook-id"], told["webhook-timestamp"], body)
        assert told["webhook-signature"] == right
        assert told["idempotency-key"] == told["webhook-id"]
        self.posted.append(json.loads(body))
        self.ids.append(told["webhook-id"])
        return await self.answer(request, body)


async def _taken(request: web.Request, body: bytes) -> web.StreamResponse:
    return web.Response()


@asynccontextmanager
async def hooked() -> AsyncIterator[tuple[Hook, WebhookFleet]]:
    hook, app = Hook(), web.Application()
    app.router.add_post("/scale", hook.scale)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        hook.leave = runner.cleanup
        host, port = runner.addresses[0][:2]
        url = f"http://{host}:{port}/scale"
        async with aiohttp.ClientSession(trust_env=False) as client:
            yield hook, WebhookFleet("[]", client, 60.0, url=url, secret=SECRET, epoch=3)
    finally:
        await runner.cleanup()


async def test_a_number_is_posted_once_and_another_one_again() -> None:
    async with hooked() as (hook, fleet):
        for desired in (2, 2, 3, 3, 2):
            assert await fleet.act(decision(desired), NOW_S) == 0
        assert [each["desired"] for each in hook.posted] == [2, 3, 2]
        assert len(set(hook.ids)) == 3
        assert fleet.asked_for is None


async def test_a_signed_answer_tells_what_was_asked_for() -> None:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        return signed(request, b'{"asked_for": 5}')

    async with hooked() as (hook, fleet):
        hook.answer = answer
        assert await fleet.act(decision(2), NOW_S) == 0
        assert fleet.asked_for == 5


FORGED: dict[str, Callable[[web.Request], web.Response]] = {
    "unsigned": lambda r: web.Response(body=b'{"asked_for": 5}'),
    "wrong secret": lambda r: signed(r, b'{"asked_for": 5}', secret=b"other"),
    "replayed": lambda r: signed(r, b'{"asked_for": 5}', message_id="foretell-3-0"),
    "late": lambda r: signed(r, b'{"asked_for": 5}', at=-TUNING.webhook_tolerance_s - 1),
    "no JSON": lambda r: signed(r, b"{"),
    "no object": lambda r: signed(r, b"[5]"),
    "no number": lambda r: signed(r, b'{"asked_for": "5"}'),
    "negative": lambda r: signed(r, b'{"asked_for": -5}'),
    "refused": lambda r: web.Response(status=503),
    "moved": lambda r: web.Response(status=302, headers={"location": "http://127.0.0.1:9/"}),
    "endless": lambda r: web.Response(body=b"x" * (TUNING.webhook_answer_bytes + 1)),
}


@pytest.mark.parametrize("answer", FORGED.values(), ids=FORGED)
async def test_what_cannot_be_believed_is_counted_and_the_number_posted_again(
    answer: Callable[[web.Request], web.Response],
) -> None:
    async def behave(request: web.Request, body: bytes) -> web.StreamResponse:
        return answer(request)

    async with hooked() as (hook, fleet):
        hook.answer = behave
        assert await fleet.act(decision(2), NOW_S) == 1
        assert fleet.asked_for is None
        assert await fleet.act(decision(2), NOW_S + 0.5) == 0  # not yet due
        assert await fleet.act(decision(2), NOW_S + 1.0) == 1
        assert await fleet.act(decision(2), NOW_S + 2.5) == 0  # the pause has doubled
        hook.answer = _taken
        assert await fleet.act(decision(2), NOW_S + 3.0) == 0
        assert [each["desired"] for each in hook.posted] == [2, 2, 2]
        assert len(set(hook.ids)) == 1  # one idempotency key for all attempts


async def test_a_hook_that_hangs_or_is_not_there_costs_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(request: web.Request, body: bytes) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("it hangs")

    async with hooked() as (hook, fleet):
        hook.answer = hang
        with monkeypatch.context() as patch:
            patch.setattr(webhook, "TUNING", ProvisionerTuning(webhook_answer_s=0.1))
            assert await fleet.act(decision(2), NOW_S) == 1
        hook.answer = _taken
        assert await fleet.act(decision(4), NOW_S) == 0  # another number is posted at once
        assert hook.posted[-1]["desired"] == 4
        await hook.leave()
        assert await fleet.act(decision(1), NOW_S) == 1  # the hook no longer listens
