"""The small model behind the tagger, the encoder in its own process, and how much is learnt."""

import asyncio
import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from test_tagger import WAIT_S, FakeRegressor, running_model, until
from test_tagger_model import FakeEncoder, median, observe

from foretell.length.conversation import Conversation
from services.tagger import apart
from services.tagger.adapted import EncoderModel
from services.tagger.apart import EncoderApart
from services.tagger.encoder import Encoder
from services.tagger.models import RegressorModel
from services.tagger.sampling import Sample
from services.tagger.server import Limits
from services.tagger.small import folder_of

SAID = [Conversation("Is all well?", 12, 4), Conversation("Write a long story.", 19, 5)]


async def test_what_the_model_cannot_read_the_small_one_answers(tmp_path: Path) -> None:
    regressor = FakeRegressor()
    regressor.gate.clear()
    small = EncoderModel(FakeEncoder(), "small_model")
    model = RegressorModel(regressor, 100)
    async with running_model(tmp_path, model, Limits(max_queue=2), small) as tagger:
        first = asyncio.create_task(tagger.tag("x"))
        await until(lambda: len(regressor.batches) == 1)
        others = [asyncio.create_task(tagger.tag("x" * 200)) for _ in range(5)]
        await until(lambda: sum(task.done() for task in others) == 3)
        quick = [task.result() for task in others if task.done()]
        assert {answer.source for answer in quick} == {"small_model"}
        assert all(median(answer) == pytest.approx(200, rel=0.2) for answer in quick)
        late = await tagger.tag("x" * 100, timeout=2.0)
        assert late.source == "small_model"
        regressor.gate.set()
        assert (await first).source == "model"
        assert await tagger.metric('foretell_tagger_requests_total{source="small_model"}') == 4.0


async def test_the_small_model_learns_of_what_the_large_one_answered(tmp_path: Path) -> None:
    """When load comes, it knows the serving model already."""
    large, quick = FakeEncoder(), FakeEncoder()
    small = EncoderModel(quick, "small_model")
    async with running_model(tmp_path, EncoderModel(large), small=small) as tagger:
        for number in range(120):
            size = 50 + 7 * (number % 40)
            answer = await tagger.tag("x" * size, request_id=f"r{number}")
            assert answer.source == "model"
            await observe(tagger, f"r{number}", 3 * size)
        large.read = None  # type: ignore[method-assign,assignment] # it fails from now on
        answer = await tagger.tag("x" * 203)
        assert answer.source == "small_model"
        assert median(answer) == pytest.approx(609, rel=0.25)


def test_the_encoder_apart_says_what_it_says_here() -> None:
    folder = folder_of("shipped")
    encoder = EncoderApart(folder)
    try:
        found, seen = encoder.read(SAID, ["", ""])
        expected, expected_seen = Encoder(folder).read(SAID, ["", ""])
        assert found == pytest.approx(expected)
        assert seen == pytest.approx(expected_seen)
        if hasattr(os, "SCHED_IDLE"):
            assert os.sched_getscheduler(encoder.pid) == os.SCHED_IDLE
    finally:
        encoder.close()
    assert encoder.pid == 0


def test_an_encoder_that_is_killed_or_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_RESTART_S", 1e9)
    encoder = EncoderApart(folder_of("shipped"))
    try:
        first = encoder.pid
        os.kill(first, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="died"):
            encoder.read(SAID, ["", ""])
        with pytest.raises(RuntimeError, match="soon"):
            encoder.read(SAID, ["", ""])
        monkeypatch.setattr(apart, "_RESTART_S", 0.0)
        assert len(encoder.read(SAID, ["", ""])[0]) == 2
        os.kill(encoder.pid, signal.SIGSTOP)
        monkeypatch.setattr(apart, "_HUNG_S", 0.2)
        with pytest.raises(RuntimeError, match="no answer"):
            encoder.read(SAID, ["", ""])
        monkeypatch.setattr(apart, "_HUNG_S", WAIT_S)
        assert len(encoder.read(SAID, ["", ""])[0]) == 2
        assert encoder.pid != first
    finally:
        encoder.close()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=str(tmp_path)):
        EncoderApart(tmp_path)


def test_few_answers_are_all_learnt_and_many_are_thinned() -> None:
    sample = Sample()
    assert list(sample.of(range(100), 0.0)) == list(range(100))
    assert list(sample.of((), 0.0)) == []
    taken = [len(sample.of(range(40), 0.2 * turn)) for turn in range(1, 501)]
    assert 2000 <= sum(taken) <= 2000 + 256, "20 a second"
    spread = sample.of(range(40), 200.0)
    assert len(set(spread)) == len(spread) > 1
    gaps = {later - earlier for earlier, later in pairwise(spread)}
    assert len(gaps) == 1, "evenly spaced"
