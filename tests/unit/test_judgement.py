"""Who is to blame for a failed answer: relay and picker judge alike."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.answer.judgement import AnswerJudgement, Asked, Verdict, judge, lost
from foretell.openai.parsing import parse
from foretell.openai.surface import ENDPOINTS
from foretell.placement.needs import Need
from foretell.services.scheduler.envoy.exchange import PickerExchange
from foretell.services.scheduler.relay import transfer as relay_transfer
from foretell.services.scheduler.relay.transfer import AttemptFailed, Transfer
from foretell.wire import ext_proc

STATUSES = st.sampled_from([200, 201, 204, 302, *range(400, 432), 499, 500, 502, 503, 504, 599])
UNFIT = "This model's maximum context length is 8192 tokens"
GONE = "Response with id 'resp_1' not found."
ASKED = Asked(model="test-model", longest=8192)
BODIES = st.sampled_from(
    [
        {"error": {"message": "no"}},
        {"error": {"message": UNFIT}},
        {"error": {"message": GONE}},
        {"error": {"message": "The model `test-model` does not exist."}},
        {"detail": "Not Found"},
        {"id": "a", "choices": []},
    ]
).map(lambda body: json.dumps(body, separators=(",", ":")).encode())

INSTANCE = SimpleNamespace(takes_fields=True, config=SimpleNamespace(rank=None))


@given(STATUSES, st.none() | BODIES, st.booleans(), st.booleans(), st.booleans())
def test_each_answer_is_somebodys(
    status: int, body: bytes | None, generates: bool, as_event: bool, continued: bool
) -> None:
    asked = ASKED._replace(generates=generates)
    found = judge(status, body, asked=asked, as_event=as_event, continued=continued)
    assert found.may_be_repeated == (found.verdict is not Verdict.CLIENTS)
    assert found.counts == (found.verdict in (Verdict.FAULT, Verdict.REFUSED))
    assert bool(found.unfit) == (found.verdict is Verdict.UNFIT)
    assert found.reason
    if status >= 500 or 300 <= status < 400:
        assert found.verdict is Verdict.FAULT
    if status < 300:
        assert found.verdict is Verdict.CLIENTS
    if continued and status >= 400:
        assert found.verdict is Verdict.FAULT
    if body is None:
        assert found.verdict is not Verdict.UNFIT
    else:  # the body never clears an engine
        bare = judge(status, asked=asked, as_event=as_event, continued=continued)
        assert bare.verdict is not Verdict.FAULT or found.verdict is Verdict.FAULT


@pytest.mark.parametrize(
    ("status", "error", "inputs", "verdict"),
    [
        (400, {"message": UNFIT}, (), Verdict.UNFIT),
        (400, {"message": "too long", "param": "input_tokens"}, (), Verdict.UNFIT),
        (404, {"message": UNFIT}, (), Verdict.REFUSED),
        (404, {"message": GONE}, (), Verdict.UNFIT),
        (404, {"message": "none", "code": "model_not_found"}, (), Verdict.UNFIT),
        (400, {"message": GONE}, (), Verdict.CLIENTS),
        (400, {"message": "this is not a multimodal model"}, (), Verdict.CLIENTS),
        (400, {"message": "this is not a multimodal model"}, ("image",), Verdict.UNFIT),
        (401, {"message": "bad key"}, (), Verdict.FAULT),
        (429, {"message": "slow down"}, (), Verdict.REFUSED),
        (422, {"message": "no"}, (), Verdict.CLIENTS),
    ],
)
def test_what_engines_say(
    status: int, error: dict[str, str], inputs: tuple[str, ...], verdict: Verdict
) -> None:
    asked = ASKED._replace(need=Need(inputs=frozenset(inputs)))
    assert judge(status, json.dumps({"error": error}).encode(), asked=asked).verdict is verdict


def test_of_our_key_no_client_hears() -> None:
    assert judge(401).is_about_us
    assert judge(403, b"{}", as_event=True).is_about_us
    assert not judge(503).is_about_us
    assert not lost("timeout").is_about_us
    assert lost("timeout").counts


# The two adapters: relay and picker.


async def relayed(status: int, body: bytes, *, stream: bool) -> AnswerJudgement | None:
    """The relay's judgement of an answer; None if the client got it."""
    spec = SimpleNamespace(request_id="r", length=SimpleNamespace(expected_tokens=1), priority=0)
    attempt: Any = SimpleNamespace(
        spec=spec,
        key="r#1",
        instance_id="engine-0",
        instance=INSTANCE,
        continued=False,
        headers=dict,
        output_tokens=0,
    )
    raw = json.dumps({"model": "test-model", "prompt": "a", "stream": stream}).encode()
    request = parse(ENDPOINTS["/v1/completions"], raw)
    context: Any = SimpleNamespace(
        request=request, grant=None, placer=Mock(), asked=lambda: ASKED, body=lambda **_: b"{}"
    )
    reply, engines = Mock(begun=False), Mock()

    async def post(*_: Any, **__: Any) -> Any:
        return Mock()

    engines.post = post
    transfer = Transfer(context, attempt, {}, reply)
    answered = asyncio.create_task(transfer.run(engines))
    await asyncio.sleep(0)
    transfer.head(status, {})
    transfer.data(body)
    transfer.end()
    try:
        await answered
    except AttemptFailed as failure:
        return failure.judgement
    return None


def picked(status: int) -> tuple[AnswerJudgement | None, bool]:
    """The picker's judgement of an answer's head, and whether the client gets the answer."""
    stream, heard = Mock(), list[AnswerJudgement]()
    addresses = MagicMock(instance=Mock(return_value=None))
    exchange = PickerExchange(stream, MagicMock(), addresses, {})
    attempt = SimpleNamespace(status=0, headers=dict, instance=SimpleNamespace(is_down=False))
    life: Any = SimpleNamespace(
        attempt=attempt,
        is_sent=True,
        failed=heard.append,
        end=Mock(),
        end_attempt=Mock(),
        placer=Mock(core=Mock(config=Mock(max_attempts=3))),
        endpoint=ENDPOINTS["/v1/completions"],
        request_id="id",
    )
    exchange._life = life
    exchange._answered({":status": str(status), ext_proc.SERVED: "10.0.0.1:80"})
    return (heard[0] if heard else None), not stream.end.called


@given(STATUSES.filter(lambda status: status != 204), BODIES)
def test_relay_and_picker_judge_alike(status: int, body: bytes) -> None:
    relay_transfer._FAULT_WAIT_S = 0.0
    by_head, by_body = judge(status), judge(status, body, asked=ASKED)
    relay = asyncio.run(relayed(status, body, stream=False))
    assert relay == (by_body if by_body.may_be_repeated else None)
    picker, is_passed_on = picked(status)
    assert picker == (by_head if by_head.counts else None)
    assert is_passed_on == (by_head.verdict is not Verdict.FAULT)
    if picker is not None and relay is not None:
        assert picker.counts == relay.counts or relay.verdict is Verdict.UNFIT


@given(STATUSES.filter(lambda status: status >= 400), st.sampled_from([UNFIT, GONE, "no"]))
def test_a_stream_that_begins_with_an_error_is_judged_by_its_status(status: int, said: str) -> None:
    error = json.dumps({"error": {"message": said, "code": status}}).encode()
    relay = asyncio.run(relayed(200, b"data: %b\n\ndata: [DONE]\n\n" % error, stream=True))
    wanted = judge(status, error, asked=ASKED, as_event=True)
    assert relay == (wanted if wanted.may_be_repeated else None)
