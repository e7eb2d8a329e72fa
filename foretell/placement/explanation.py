"""Why a request went where it went: a decision with its numbers, and in a sentence."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from foretell.model import Load, Prediction
from foretell.placement.decision import Decision
from foretell.policy import Policy
from foretell.policy.judgement import DelayParts, Judgement, JudgingPolicy


@dataclass(frozen=True, slots=True)
class Considered:
    """One candidate: what was predicted for it, and how the policy scored that."""

    instance_id: str
    chosen: bool
    outstanding: int
    """Requests of this scheduler that were in progress there."""
    load: Load | None
    prediction: Prediction | None
    """None if nothing was predicted for it, or the prediction is not trusted."""
    compared: bool
    """False if the policy left it out because others meet the request's targets better."""
    score: float | None
    """What the policy compared, in the unit of `Explanation.measure`; the lowest is chosen. None
    if it was not compared."""
    tie_break: float | None
    """Among equal scores the lowest of these is chosen; among equals in both, a draw decides."""
    score_known: bool
    """False if the score was derived from those of other candidates, as its own is unknown."""
    parts: DelayParts | None
    """The parts of its total delay."""
    worth: float | None
    """The expected number of requests that meet their targets thanks to the choice; None if the
    request has no targets or it is unknown."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision, explained."""

    policy: str
    measure: str
    """What the scores measure; empty for a policy without scores."""
    because: str
    """The reason, in a sentence."""
    chosen: str
    """The `instance_id`."""
    draw: float
    """The draw in [0, 1) that chose among exact ties."""
    candidates: tuple[Considered, ...]
    """In the order in which the draw chose; those that were not compared come last."""


def explain(policy: Policy, decision: Decision) -> Explanation:
    """Explain `decision` by the same comparison that made it."""
    judgement, measure = None, ""
    if isinstance(policy, JudgingPolicy):
        spec, candidates, memory = decision.spec, decision.candidates, decision.memory
        judgement, measure = policy.judge(spec, candidates, memory), policy.measure
    found = tuple(_considered(decision, judgement))
    return Explanation(
        policy.name,
        measure,
        _sentence(policy, decision, sorted(found, key=best_first), measure),
        decision.chosen.instance_id,
        decision.draw,
        found,
    )


def _considered(decision: Decision, judgement: Judgement | None) -> Iterator[Considered]:
    judged = judgement or Judgement((), ())
    places = {c.instance_id: i for i, c in enumerate(judged.candidates)}
    last = len(places)
    for candidate in sorted(decision.candidates, key=lambda c: places.get(c.instance_id, last)):
        name = candidate.instance_id
        place = places.get(name)
        score, tie_break = (None, None) if place is None else judged.keys[place]
        yield Considered(
            instance_id=name,
            chosen=name == decision.chosen.instance_id,
            outstanding=candidate.outstanding,
            load=candidate.load,
            prediction=candidate.prediction,
            compared=place is not None,
            score=score,
            tie_break=tie_break,
            score_known=place is None or not judged.known or judged.known[place],
            parts=None if place is None or not judged.parts else judged.parts[place],
            worth=judged.worths.get(name),
        )


def best_first(one: Considered) -> tuple[bool, bool, float, float, str]:
    """A sort key: the chosen candidate first, then by score, those not compared last."""
    score = one.score if one.score is not None else 0.0
    tie_break = one.tie_break if one.tie_break is not None else 0.0
    return not one.chosen, not one.compared, score, tie_break, one.instance_id


def _sentence(policy: Policy, decision: Decision, found: Sequence[Considered], measure: str) -> str:
    """The sentence that says why the first of `found` was chosen."""
    best, compared = found[0], [each for each in found if each.compared]
    name = best.instance_id
    left_out = len(found) - len(compared)
    before = ""
    if decision.waited_s is not None:
        before = f"recalled from a queue, with {_seconds(decision.waited_s)} left to wait there: "
    if len(found) == 1:
        return f"{before}{name} was the only candidate"
    if not measure:
        return f"{before}{name} was chosen by {policy.name}, which compares no scores"
    if left_out:
        before += f"{left_out} of {len(found)} are less likely to meet targets; of the others "
    if len(compared) == 1:
        return f"{before}only {name} is left"
    equals = [each for each in compared if (each.score, each.tie_break) == _key(best)]
    if len(equals) > 1:
        return f"{before}{name} was drawn from {len(equals)} that are equally good by {measure}"
    if policy.needs.prediction and not any(each.score_known for each in compared):
        return f"{before}{name} has the fewest requests for its size: there was no prediction"
    return f"{before}{name} is the best by {measure}: {_compared(best, compared[1])}"


def _key(one: Considered) -> tuple[float | None, float | None]:
    return one.score, one.tie_break


def _compared(best: Considered, second: Considered) -> str:
    """The scores of both, and the part that differs most if there are parts."""
    assert best.score is not None, "the best was compared"
    assert second.score is not None, "so was the second"
    text = f"{best.score:.4g} against {second.score:.4g} of {second.instance_id}"
    if not best.score_known:
        return f"{text}; its own is not known, and was taken from the others'"
    if best.parts is None or second.parts is None:
        return text
    weighed, seconds, why = max(_differences(best.parts, second.parts))
    if not isfinite(weighed):
        return text
    return f"{text}, mostly by {why}, {_seconds(seconds[0])} against {_seconds(seconds[1])}"


def _differences(
    best: DelayParts, second: DelayParts
) -> Iterable[tuple[float, tuple[float, float], str]]:
    """By how much `best` is better in each part, both values in seconds, and the part's name."""
    waits_s, decodings_s = (best.wait_s, second.wait_s), (best.decoding_s, second.decoding_s)
    added_s = best.added_s or 0.0, second.added_s or 0.0
    yield added_s[1] - added_s[0], added_s, "what it costs the others there"
    yield decodings_s[1] - decodings_s[0], decodings_s, "what its own decoding takes longer"
    rooms_s = best.room_s, second.room_s
    yield rooms_s[1] - rooms_s[0], rooms_s, "what its room is worth to those who come later"
    yield second.weighed_wait_s - best.weighed_wait_s, waits_s, "its own wait"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"
