"""The encoder in its own process, and how much the tagger learns."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from test_tagger import WAIT_S

from foretell.length.conversation import Conversation
from foretell.length.sampling import Sample
from foretell.services.tagger import apart
from foretell.services.tagger.apart import EncoderApart
from foretell.services.tagger.encoder import OnnxEncoder
from foretell.services.tagger.models import folder_of

SAID = [Conversation("Is all well?", 12, 4), Conversation("Write a long story.", 19, 5)]


def test_the_encoder_apart_says_what_it_says_here() -> None:
    folder = folder_of("shipped")
    encoder = EncoderApart(folder)
    try:
        found, seen = encoder.read(SAID, ["", ""])
        expected, expected_seen = OnnxEncoder(folder).read(SAID, ["", ""])
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


def test_who_waits_for_an_encoder_that_gets_no_processor_is_released() -> None:
    """The tagger's process waits for such threads when it ends."""
    encoder = EncoderApart(folder_of("shipped"))
    os.kill(encoder.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(encoder.read, SAID, ["", ""])
        encoder.kill()
        with pytest.raises(RuntimeError, match="died"):
            reading.result(WAIT_S)
    assert encoder.pid == 0


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=str(tmp_path)):
        EncoderApart(tmp_path)


@pytest.mark.parametrize("model", ["shipped", "none"])
def test_a_tagger_that_ends_during_the_start_leaves_no_traceback(
    model: str, tmp_path: Path
) -> None:
    folder = folder_of("shipped") if model == "shipped" else tmp_path
    own, other = socket.socketpair()
    own.close()
    with other:
        number = other.fileno()
        command = [sys.executable, "-m", apart.__name__, str(folder), "1", str(number)]
        process = subprocess.run(
            command, pass_fds=[number], stderr=subprocess.PIPE, timeout=WAIT_S, check=False
        )
    assert (process.returncode, process.stderr) == (0, b"")


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
