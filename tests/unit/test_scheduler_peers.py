"""When a peer is asked again, and what counts as its answer."""

import grpc
import pytest

from foretell.placement.instances import Breaker
from foretell.services.scheduler.placing.peers import NoAnswer, answer_of


def pause_s(breaker: Breaker, now_s: float) -> float:
    """Seconds from `now_s` for which a breaker that is open stays so."""
    found_s = 0.0
    while breaker.open(now_s + found_s):
        found_s += 0.01
    return found_s


def test_pauses_double_up_to_a_limit() -> None:
    breaker, now_s = Breaker(), 100.0
    assert not breaker.open(now_s)
    pauses = []
    for _ in range(40):
        breaker.failed(now_s)
        pauses.append(pause_s(breaker, now_s))
        now_s += pauses[-1]
    expected = [min(5.0, 0.1 * 2**i) for i in range(40)]
    assert pauses == pytest.approx(expected, abs=0.02)


def test_one_success_forgives_all() -> None:
    breaker, now_s = Breaker(), 100.0
    for _ in range(5):
        breaker.failed(now_s)
    breaker.succeeded()
    assert not breaker.open(now_s)
    breaker.failed(now_s)
    assert pause_s(breaker, now_s) == pytest.approx(0.1, abs=0.02)


async def test_what_is_no_message_is_no_answer() -> None:
    async def undecodable() -> None:
        return None

    async def failing() -> None:
        code, nothing = grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, nothing, nothing, "gone")

    async def good() -> str:
        return "message"

    assert await answer_of(good()) == "message"
    with pytest.raises(NoAnswer, match="decoded"):
        await answer_of(undecodable())
    with pytest.raises(NoAnswer, match="UNAVAILABLE: gone"):
        await answer_of(failing())
