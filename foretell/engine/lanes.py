"""What becomes of the requests that an engine has: when each gets its tokens."""

from typing import Literal, NamedTuple

from foretell.engine.predictor import EnginePredictor
from foretell.engine.questions import arrival
from foretell.length.distribution import certain
from foretell.model import LengthEstimate, RequestSpec

Stage = Literal["running", "waiting", "sent"]
"""`sent`: on its way to the engine."""
_NOBODY = RequestSpec("", 1, 0, LengthEstimate(1.0, source="hint"))


class Lane(NamedTuple):
    """One sequence in an engine, seconds from now."""

    stage: Stage
    output_tokens: int
    """So far."""
    first_s: float
    """Until its first token is expected; 0 where it has one."""
    last_s: float
    """Until its last token is expected; infinite where it can never run."""


def lanes(predictor: EnginePredictor, now_s: float) -> list[Lane]:
    """The sequences of an engine that has been shown, in the order in which it holds them."""
    question = predictor.question(_NOBODY, False, announced_only=True)
    first_s, last_s = predictor.forecaster.futures_s(
        question, arrival(_NOBODY, certain(1.0), now_s), now_s
    )
    figures = predictor.figures
    rows = predictor.forecaster.snapshots.requests[predictor.index, : figures.requests]
    outputs = [int(tokens) for tokens in rows["output"]]
    found = []
    for slot, (first, last) in enumerate(zip(first_s.tolist(), last_s.tolist(), strict=True)):
        stage: Stage = "sent"
        if slot < figures.requests:
            stage = "running" if slot < figures.running else "waiting"
        tokens = outputs[slot] if slot < len(outputs) else 0
        until_first_s = 0.0 if tokens else max(0.0, first - now_s)
        found.append(Lane(stage, tokens, until_first_s, max(0.0, last - now_s)))
    return found
