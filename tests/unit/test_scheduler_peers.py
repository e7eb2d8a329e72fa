"""When a peer is asked again, and what counts as its answer."""

import grpc
import pytest

from services.scheduler.placing import peers
from services.scheduler.placing.peers import Breaker, NoAnswer, answer_of


class Clock:
    """Stands in for the `time` module."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(peers, "time", clock)
    return clock


def pause(breaker: Breaker, clock: Clock) -> float:
    """Seconds for which a breaker that is open stays so; the clock stands at their end after."""
    started = clock.now
    while breaker.open:
        clock.now += 0.01
    return clock.now - started


def test_pauses_double_up_to_a_limit(clock: Clock) -> None:
    breaker = Breaker()
    assert not breaker.open
    pauses = []
    for _ in range(40):
        breaker.failed()
        pauses.append(pause(breaker, clock))
    expected = [min(5.0, 0.1 * 2**i) for i in range(40)]
    assert pauses == pytest.approx(expected, abs=0.02)


def test_one_success_forgives_all(clock: Clock) -> None:
    breaker = Breaker()
    for _ in range(5):
        breaker.failed()
    breaker.succeeded()
    assert not breaker.open
    breaker.failed()
    assert pause(breaker, clock) == pytest.approx(0.1, abs=0.02)


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
