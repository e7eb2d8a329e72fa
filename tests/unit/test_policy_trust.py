"""An engine that is predicted to be slow is tried again, so that predictions become right."""

from math import inf

import pytest
from policy_cases import REQUEST, predicted

from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape
from foretell.policy import Candidate
from foretell.policy.slo import SloPolicy

TRUE = LinearStepTime((0.02, 1e-4, 1e-9, 0.0, 1e-4, 1e-7))
ONE = BatchShape(decode_seqs=1, decode_pairs=300)
TOKENS = 200
OVERLOAD = 10.0
"""How many times as long steps take on an overloaded host."""


def engine(
    name: str, tpot_s: float, *, running: int = 0, sent: int = 0, outstanding: int = 0
) -> Candidate:
    """An engine that decodes at this pace."""
    told = predicted(name, 0.1 + TOKENS * tpot_s, running=running, outstanding=outstanding)
    assert told.prediction is not None
    answer = told.prediction._replace(tpot_s=tpot_s)
    return told._replace(prediction=answer, dispatched_last_minute=sent)


def chosen(slow: Candidate) -> str:
    busy = [engine(name, 0.02, running=20, sent=50, outstanding=5) for name in ("a", "b")]
    return SloPolicy().choose(REQUEST, [*busy, slow], 0.5)


def test_an_idle_engine_that_is_believed_to_be_slow_is_tried_once_a_minute() -> None:
    assert chosen(engine("slow", 0.2)) == "slow"
    assert chosen(engine("slow", 0.2, sent=1)) != "slow"
    assert chosen(engine("slow", 0.2, running=1)) != "slow"


def test_where_a_request_can_never_run_it_is_not_tried() -> None:
    assert chosen(engine("slow", inf)) != "slow"


@pytest.mark.parametrize("before_s", [5.0, 300.0])
def test_an_engine_is_fast_again_after_an_overload(before_s: float) -> None:
    """For an overload that lasts longer than the time observed before, and for a shorter one."""
    model = OnlineStepTime(TRUE)
    _make_steps(model, before_s, 1.0)
    _make_steps(model, 60.0, OVERLOAD)
    for _ in range(3):
        model.rest(60.0)
        if chosen(engine("slow", model.step_s(ONE))) == "slow":
            _make_steps(model, TOKENS * TRUE.step_s(ONE), 1.0)
    assert model.step_s(ONE) == pytest.approx(TRUE.step_s(ONE), rel=0.2)


def _make_steps(model: OnlineStepTime, seconds: float, times: float) -> None:
    while seconds > 0:
        taken_s = times * TRUE.step_s(ONE)
        model.observe(ONE, taken_s)
        seconds -= taken_s
