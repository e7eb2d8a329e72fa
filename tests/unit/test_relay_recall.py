"""A request that is called back from its engine: whoever begins to answer first decides."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from foretell.services.scheduler.api.surface import ENDPOINTS
from foretell.services.scheduler.relay import attempt as relay_attempt
from foretell.services.scheduler.relay.attempt import Attempt, TakenBack
from foretell.services.scheduler.relay.reply import Reply

TOKEN = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'


class Engines:
    """An engine that has got the request and says nothing by itself."""

    listener: Attempt

    async def post(self, *sent: Any, **_: Any) -> Any:
        self.listener = sent[-1]
        return Mock()


async def begun(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Any, Attempt, Reply, "asyncio.Task[None]"]:
    """A placement, the attempt that is under way, its reply, and who awaits the answer."""
    monkeypatch.setattr(relay_attempt, "for_engine", lambda *_, **__: b"{}")
    spec = SimpleNamespace(request_id="r", length=SimpleNamespace(expected_tokens=1), priority=0)
    instance = SimpleNamespace(config=SimpleNamespace(instance_id="engine-0"))
    placement = SimpleNamespace(
        spec=spec, instance=instance, policy="slo", prediction=None, headers=dict
    )
    request = SimpleNamespace(
        stream=True,
        endpoint=ENDPOINTS["/v1/completions"],
        priority=0,
        grant=None,
        content_type="application/json",
        body={},
    )
    reply, engines = Reply(Mock(), "id", request.endpoint), Engines()
    attempt = Attempt(
        request,  # type: ignore[arg-type]
        "id",
        {},
        placement,  # type: ignore[arg-type]
        reply,
        started=Mock(),
    )
    answered = asyncio.create_task(attempt.run(engines))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert engines.listener is attempt
    attempt.head(200, {})
    return placement, attempt, reply, answered


async def test_what_comes_after_it_was_called_back_goes_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placement, attempt, reply, answered = await begun(monkeypatch)
    assert placement.take_back()
    attempt.data(TOKEN)  # it was on its way
    attempt.end()
    attempt.broken("given_up")
    with pytest.raises(TakenBack):
        await answered
    assert not reply.started
    assert not placement.take_back(), "it can be taken back once"


async def test_what_has_a_token_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, attempt, reply, answered = await begun(monkeypatch)
    attempt.data(TOKEN)
    assert reply.started
    assert not placement.take_back()
    attempt.data(b"data: [DONE]\n\n")
    attempt.end()
    await answered
