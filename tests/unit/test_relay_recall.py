"""A request that is called back from its engine: the first answer of the engine decides."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from foretell.openai.surface import ENDPOINTS
from foretell.services.scheduler.placing.attempt import Attempt
from foretell.services.scheduler.relay.transfer import TakenBack, Transfer

TOKEN = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'

INSTANCE = SimpleNamespace(takes_fields=True, config=SimpleNamespace(rank=None))


class Engines:
    """An engine that has received the request and sends nothing by itself."""

    listener: Transfer

    async def post(self, *sent: Any, **_: Any) -> Any:
        self.listener = sent[-1]
        return Mock()


async def begun() -> tuple[Any, Transfer, Mock, "asyncio.Task[None]"]:
    """An attempt, its running transfer, its reply, and the task that awaits the answer."""
    spec = SimpleNamespace(request_id="r", length=SimpleNamespace(expected_tokens=1), priority=0)
    attempt = SimpleNamespace(
        spec=spec,
        key="r#1",
        instance=INSTANCE,
        instance_id="engine-0",
        continued=False,
        headers=dict,
        output_tokens=0,
    )
    request = SimpleNamespace(
        stream=True,
        endpoint=ENDPOINTS["/v1/completions"],
        priority=0,
        request_id="id",
        content_type="application/json",
        body={},
    )
    context: Any = SimpleNamespace(
        request=request, grant=None, placer=Mock(), body=lambda **_: b"{}"
    )
    reply, engines = Mock(begun=False), Engines()
    transfer = Transfer(context, cast(Attempt, attempt), {}, reply)
    answered = asyncio.create_task(transfer.run(engines))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert engines.listener is transfer
    transfer.head(200, {})
    return attempt, transfer, reply, answered


async def test_what_comes_after_it_was_called_back_goes_nowhere() -> None:
    attempt, transfer, reply, answered = await begun()
    assert attempt.carrier.take_back()
    transfer.data(TOKEN)  # it was on its way
    transfer.end()
    transfer.broken("given_up")
    with pytest.raises(TakenBack):
        await answered
    assert not reply.start.called
    assert not attempt.carrier.take_back(), "it can be taken back once"


async def test_what_has_a_token_stays() -> None:
    attempt, transfer, reply, answered = await begun()
    transfer.data(TOKEN)
    assert reply.start.called
    assert not attempt.carrier.take_back()
    transfer.data(b"data: [DONE]\n\n")
    transfer.end()
    await answered
