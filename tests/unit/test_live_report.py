"""Simple predictors, errors and recordings of a live measurement."""

from math import inf
from pathlib import Path
from random import Random

import pytest

from foretell.tools.live.recording import Recording, Served
from foretell.tools.live.report import TPOT, Pairs, all_pairs, errors, errors_of, own_pairs
from foretell.tools.live.simple import SIMPLE, Arriving, Linear, everything, queue, replayed


def served(index: int, at: float, *, ttft: float, e2e: float, output: int = 10) -> Served:
    return Served(
        request_id=f"r{index}",
        prompt_tokens=100,
        output_tokens=output,
        measured=index >= 5,
        asked_unix_s=at - 0.001,
        decided_unix_s=at,
        first_unix_s=at + ttft,
        last_unix_s=at + e2e,
        completed_unix_s=at + e2e,
        predicted_ttft_s=ttft * 1.1,
        predicted_e2e_s=e2e * 0.9,
        answer_delay_s=0.0,
        snapshot_age_s=0.0,
        calibration_steps=7,
    )


@pytest.mark.parametrize("relative", [False, True])
def test_least_squares_find_what_is_linear(relative: bool) -> None:
    draws = Random(1)
    predictor = Linear(everything, relative=relative)
    assert predictor.predict(Arriving(1, 1, 0, 0)) == 0.0

    def truth(a: Arriving) -> float:
        return 0.05 + 1e-4 * a.prompt_tokens + 0.01 * a.output_tokens + 0.02 * a.outstanding

    for _ in range(200):
        arriving = Arriving(*(draws.randrange(1, 300) for _ in range(4)))
        predictor.learn(arriving, truth(arriving))
    asked = Arriving(50, 120, 7, 900)
    assert predictor.predict(asked) == pytest.approx(truth(asked), rel=1e-3)


def test_no_prediction_below_the_shortest_latency_seen() -> None:
    predictor = Linear(queue, relative=False)
    for outstanding, latency in ((10, 1.0), (20, 2.0), (5, 0.5)):
        predictor.learn(Arriving(1, 1, outstanding, 0), latency)
    assert predictor.predict(Arriving(1, 1, 0, 0)) == 0.5


def test_answers_that_came_at_once_say_nothing_of_times_per_token() -> None:
    requests = [
        served(5, 1.0, ttft=0.5, e2e=0.5),
        served(6, 2.0, ttft=0.5, e2e=1.4),
        served(7, 3.0, ttft=0.5, e2e=0.5, output=1),
    ]
    found = own_pairs(Recording({}, requests))
    assert found[TPOT].actual_s == pytest.approx([0.1])
    assert errors_of({"own": found})["own"][TPOT]["count"] == 1


@pytest.mark.parametrize("name", sorted(SIMPLE))
def test_simple_predictors_are_asked_before_they_are_told(name: str) -> None:
    """If later requests end differently, no earlier prediction changes."""
    draws = Random(2)
    requests = [
        served(i, i * 0.5, ttft=0.1, e2e=draws.uniform(0.3, 4.0), output=draws.randrange(5, 90))
        for i in range(60)
    ]
    before = replayed(requests, SIMPLE[name], lambda r: r.e2e_s)
    cut = 30.0 * 0.5
    changed = [
        r if r.last_unix_s <= cut else served(i, i * 0.5, ttft=0.2, e2e=9.0 + cut)
        for i, r in enumerate(requests)
    ]
    after = replayed(changed, SIMPLE[name], lambda r: r.e2e_s)
    asked_before = [i for i, r in enumerate(requests) if r.decided_unix_s <= cut]
    same = [i for i in asked_before if requests[i].output_tokens == changed[i].output_tokens]
    assert [before[i] for i in same] == [after[i] for i in same]
    assert before[0] == 0.0
    assert min(before[20:]) > 0.0


def test_errors_are_relative_to_the_truth() -> None:
    found = errors(Pairs([1.1, 0.5, 2.0], [1.0, 1.0, 1.0]))
    assert (found.median, found.signed_median) == pytest.approx((0.5, 0.1))
    assert found.mean == pytest.approx((0.1 + 0.5 + 1.0) / 3)
    assert found.p90 == pytest.approx(0.9)
    assert found.count == 3
    for pairs in (Pairs([inf], [1.0]), Pairs([], [])):
        with pytest.raises(ValueError, match="never to end"):
            errors(pairs)


def test_a_recording_comes_back_as_it_was(tmp_path: Path) -> None:
    requests = [served(i, float(i), ttft=0.1, e2e=0.5) for i in range(8)]
    recording = Recording({"model": "m"}, requests, [b"one", b"", b"three" * 1000])
    path = tmp_path / "run.zip"
    recording.write(path)
    assert Recording.read(path) == recording
    assert list(tmp_path.iterdir()) == [path]
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match="no recording"):
        Recording.read(path)


def test_the_report_counts_measured_requests_only() -> None:
    requests = [served(i, float(i), ttft=0.1, e2e=0.5) for i in range(8)]
    found = errors_of(all_pairs(Recording({}, requests)))
    assert set(found) == {"foretell", *SIMPLE}
    ours = found["foretell"]
    assert (ours["ttft"]["count"], ours["e2e"]["count"]) == (3, 3)
    assert ours["ttft"]["median"] == pytest.approx(0.1)
    assert ours["e2e"]["signed_median"] == pytest.approx(-0.1)
    assert len(all_pairs(Recording({}, requests))["roofline"]["e2e"].actual_s) == 3
