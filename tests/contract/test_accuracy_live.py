"""The accuracy of predictions, measured against an emulated engine over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from foretell.config import PredictorSettings
from foretell.model import Prediction, RequestSpec
from foretell.services.predictor.__main__ import serve
from foretell.tools.follower import Follower, NothingKnown
from foretell.tools.live.load import MixedLengths
from foretell.tools.live.measure import CannotMeasure, LiveOptions, measure, saturating
from foretell.tools.live.recording import Recording
from foretell.tools.live.replay import snapshots_of, states
from foretell.tools.live.report import all_pairs, errors_of
from tests.contract.emulated_engine import MODEL, running_engine

LENGTHS = MixedLengths(most_prompt=200, most_output=40, mean_output=15.0)


@asynccontextmanager
async def measurable(folder: Path, seats: int = 4) -> AsyncIterator[LiveOptions]:
    """The options of a measurement against an engine and its predictor, which already knows it."""
    address = f"unix:{folder}/predictor.sock"
    endpoint = f"shm://{folder}/engine-0.snapshots"
    stop = asyncio.Event()
    async with running_engine(folder, max_num_seqs=seats) as engine:
        predictor = asyncio.create_task(
            serve(PredictorSettings(listen=address, snapshot_endpoint=endpoint), stop)
        )
        try:
            yield LiveOptions(
                engine.url,
                address,
                endpoint,
                requests=20,
                warm_up=6,
                cool_down=2,
                rate_per_s=20.0,
                lengths=LENGTHS,
            )
        finally:
            stop.set()
            await predictor


async def test_a_measurement_is_recorded_and_can_be_taken_apart(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    async with measurable(tmp_path) as options:
        recording = await measure(options, lambda *step: told.append(step))
    assert told[-1][1:] == (28, 28)
    assert [r.measured for r in recording.requests] == [False] * 6 + [True] * 20 + [False] * 2
    for request in recording.requests:
        assert request.asked_unix_s <= request.decided_unix_s < request.first_unix_s
        assert request.first_unix_s <= request.last_unix_s <= request.completed_unix_s
        assert 0 < request.predicted_ttft_s <= request.predicted_e2e_s
        assert request.calibration_steps >= 0
    assert recording.requests[-1].calibration_steps > 0
    about = recording.about
    assert (about["model"], about["emulated"], about["max_num_seqs"]) == (MODEL, True, 4)
    assert errors_of(all_pairs(recording))["foretell"]["e2e"]["count"] == 20

    recording.write(tmp_path / "run.zip")
    again = Recording.read(tmp_path / "run.zip")
    # On a busy machine some snapshots are lost, with what only they showed.
    assert 0 < len(list(states(again, snapshots_of(again)))) <= 28


@pytest.mark.parametrize(("seats", "rate_per_s"), [(8, 0.0), (256, 0.0), (1024, 20.0)])
async def test_an_engine_may_have_any_number_of_seats(
    tmp_path: Path, seats: int, rate_per_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, predicted = list[str](), list[str]()
    predict = Follower.predict

    def counted(follower: Follower, spec: RequestSpec) -> Prediction | None:
        predicted.append(spec.request_id)
        return predict(follower, spec)

    monkeypatch.setattr(Follower, "predict", counted)
    async with measurable(tmp_path, seats) as options:
        few = replace(options, rate_per_s=rate_per_s, requests=5, warm_up=0, cool_down=0)
        recording = await measure(few, lambda step, *_: steps.append(step))
    assert len(recording.requests) == 5
    # Predicting hundreds at once, to find the capacity, would take longer than snapshots are fresh.
    assert predicted == [each.request_id for each in recording.requests]
    assert any("capacity" in step for step in steps) == (not rate_per_s)
    assert bool(recording.about["load"]["capacity_per_s"]) == (not rate_per_s)


@pytest.mark.parametrize("seats", [1, 8, 64, 80, 128, 256, 1024, 4096])
def test_capacity_is_counted_while_the_engine_is_full(seats: int) -> None:
    concurrency, count = saturating(seats)
    assert concurrency > seats
    assert count // 4 < count - concurrency - count // 10


async def test_what_stands_in_the_way_is_told(tmp_path: Path) -> None:
    def ignore(*step: object) -> None:
        del step

    nowhere = LiveOptions("http://127.0.0.1:1", f"unix:{tmp_path}/none.sock")
    with pytest.raises(CannotMeasure, match="no engine"):
        await measure(nowhere, ignore)
    async with running_engine(tmp_path) as engine:
        with pytest.raises(NothingKnown, match="no predictor"):
            await measure(LiveOptions(engine.url, nowhere.predictor), ignore)
