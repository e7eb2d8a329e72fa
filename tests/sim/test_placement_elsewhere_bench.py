"""What is said with hindsight is near what happens when a request goes elsewhere; and on a recorded
run of 240 requests, what is told of the decisions reproduces each of them."""

from random import Random

from bench.placement import elsewhere as bench
from bench.placement.a30 import Load
from foretell.placement.explanation import explain
from foretell.policy.slo import SloPolicy

REQUESTS = 240
LENGTHS = [(prompt, output) for prompt in (30, 200, 700) for output in (20, 90, 250)]


def test_the_told_scores_reproduce_240_choices_and_hindsight_is_near_what_happens() -> None:
    run = bench.record(Load(12.0, REQUESTS, 1, LENGTHS).arrivals(), 1)
    assert len(run.made) == REQUESTS
    drawn = 0
    for decision in run.made.values():
        told = explain(SloPolicy(), decision)
        least = min((c.score, c.tie_break) for c in told.candidates if c.compared)
        tied = [c.instance_id for c in told.candidates if (c.score, c.tie_break) == least]
        assert tied[int(told.draw * len(tied))] == decision.chosen.instance_id
        drawn += len(tied) > 1
    assert drawn < REQUESTS // 2

    numbers = Random(1).sample(range(REQUESTS // 2, REQUESTS), 3)
    found = [
        {"load": "usual", "seed": 1, "number": number, **each}
        for number in numbers
        for each in bench.elsewhere(run, number, 1)
    ]
    assert len(found) == 3 * bench.ENGINES
    assert sum(each["chosen"] for each in found) == 3
    as_it_was = {each.request_id: each for each in run.report.served}
    for each, number in zip([e for e in found if e["chosen"]], numbers, strict=True):
        served = as_it_was[run.arrivals[number].request_id]
        waited_s = served.placed_s - served.arrival_s
        assert abs(each["ttft_s"] - (served.ttft_s - waited_s)) < 1e-6
    figures = bench.errors(found)
    print(f"counterfactual, simulated: {figures}")  # noqa: T201 - its error is to be seen
    assert figures["e2e_error_p50"] < 0.3
    assert figures["ttft_error_p50_s"] < 0.3
