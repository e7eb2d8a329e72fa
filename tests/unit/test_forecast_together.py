"""Forecasts of data-parallel ranks that step together; `tests/vllm` compares them with vLLM's."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from stepped_engine import NOW, STEP_TIME

from foretell.engine.forecast import Forecaster
from foretell.engine.questions import EngineQuestion, arrival
from foretell.engine.sequence import Sequence as EngineSequence
from foretell.engine.snapshots import fill_snapshot
from foretell.engine.twin import Twin
from foretell.length.distribution import certain
from foretell.model import (
    BatchShape,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    RequestSpec,
    RequestState,
    Step,
)
from foretell.wire import snapshot_from_proto, snapshot_to_proto

CONFIG = EngineConfig("m", 16, 400, 8, 256, 1024, steps_with="deployment")
DUMMY_S = STEP_TIME.step_s(BatchShape(decode_seqs=1, decode_pairs=1))
LONG, SHORT = 40, 4
PROMPT = 200


def rank(
    outputs: Sequence[int] = (), waits: bool = False, config: EngineConfig = CONFIG
) -> EngineSnapshot:
    """Decoding requests that end with this many tokens, and optionally a waiting prompt."""
    running = tuple(
        RequestState(f"r{i}", "", 49, 1, 50, 0, NOW, scheduled_tokens=1)
        for i in range(len(outputs))
    )
    waiting = (RequestState("w", "", PROMPT, 0, 0, 0, NOW),) * waits
    shape = BatchShape(decode_seqs=len(outputs), decode_pairs=50 * len(outputs))
    steps = (Step(1, NOW, 0.0, shape),) if outputs else ()
    free = config.total_blocks - len(outputs) * config.blocks_for(50)
    return EngineSnapshot("e", "run", 1, NOW, NOW, config, free, running, waiting, steps, ())


def forecaster(*ranks: tuple[EngineSnapshot, Sequence[int]]) -> Forecaster:
    result = Forecaster(len(ranks))
    for index, (snapshot, outputs) in enumerate(ranks):
        fill_snapshot(result, index, snapshot, list(map(certain, outputs)))
        result.believe(index, STEP_TIME.packed())
    return result


def e2e_s(of: Forecaster, index: int = 0, output: int = SHORT, now_s: float = NOW) -> float:
    """The e2e latency of a new request with a prompt of one token."""
    request = RequestSpec("new", 1, 0, LengthEstimate(output))
    question = EngineQuestion(index, 1, 0, [], (), 1, 0.0)
    (found,) = of.forecast([question], arrival(request, certain(output), now_s), now_s)
    return found.e2e_s


BUSY = (rank((LONG,) * 6), (LONG,) * 6)
IDLE = (rank(), ())


def test_a_rank_of_its_own_is_an_engine_like_any_other() -> None:
    alone = replace(CONFIG, steps_with="")
    for outputs in ((), (LONG, SHORT)):
        together = e2e_s(forecaster((rank(outputs), outputs)))
        assert together == pytest.approx(e2e_s(forecaster((rank(outputs, config=alone), outputs))))


def test_the_longest_step_is_everyones() -> None:
    begins_s = STEP_TIME.step_s(BatchShape(decode_seqs=6, decode_pairs=300))
    takes_s = STEP_TIME.decode_run_s(BatchShape(decode_seqs=6, decode_pairs=306), SHORT)
    assert e2e_s(forecaster(IDLE, BUSY)) == pytest.approx(begins_s + takes_s)


def test_nobody_waits_for_ranks_of_others_or_for_silent_or_forgotten_ones() -> None:
    alone_s = e2e_s(forecaster(IDLE))
    assert e2e_s(forecaster(IDLE, BUSY)) > alone_s
    other = (rank((LONG,) * 6, config=replace(CONFIG, steps_with="other")), (LONG,) * 6)
    assert e2e_s(forecaster(IDLE, other)) == pytest.approx(alone_s)
    left = forecaster(IDLE, BUSY)
    left.forget(1)
    assert e2e_s(left) == pytest.approx(alone_s)
    silent = forecaster(IDLE, BUSY)
    silent.still_true(0, NOW + 10)
    assert e2e_s(silent, now_s=NOW + 10) == pytest.approx(alone_s)


def test_others_delay_is_kept_for_no_other_state_of_the_ranks() -> None:
    found = forecaster(BUSY, IDLE)
    request = RequestSpec("new", PROMPT, 0, LengthEstimate(1))
    question = EngineQuestion(0, 1, 0, [], (), 1, 0.0)
    coming = arrival(request, certain(1), NOW)
    before, _ = found.futures_s(question, coming, NOW)
    fill_snapshot(found, 1, rank((LONG,), waits=True), [certain(LONG), certain(1)])
    after, lasts_s = found.futures_s(question, coming, NOW)
    assert len(before) == len(after) == 6
    longer = STEP_TIME.step_s(
        BatchShape(1, PROMPT, PROMPT * (PROMPT + 1) // 2, 1, 51)
    ) - STEP_TIME.step_s(BatchShape(decode_seqs=6, decode_pairs=306))
    _, alone_s = forecaster(BUSY).futures_s(question, coming, NOW)
    assert lasts_s[0] - alone_s[0] == pytest.approx(longer)


@pytest.mark.parametrize("is_async", [False, True])
def test_prompts_wait_for_a_step_of_their_turn(is_async: bool) -> None:
    config = replace(CONFIG, prefill_schedule_interval=4, async_scheduling=is_async)
    twin = Twin(config)
    for name, prompt, output in (("first", 10, 30), ("second", 100, 2)):
        if name == "second":
            step(twin)  # the first request decodes from now on
        twin.add(sequence(name, prompt, output))
    admitted = [twin.engine["step_counter"] for _ in range(6) if "second" in step(twin)]
    assert admitted[0] == 5, "the step of number 4 has begun"


def step(twin: Twin) -> set[str]:
    batch = twin.schedule()
    if batch is None:
        return set()
    twin.complete(batch)
    return {seq.request_id for seq, _ in batch.scheduled}


def sequence(name: str, prompt: int, output: int) -> EngineSequence:
    return EngineSequence(name, prompt, stop_after=output, max_tokens=output, arrival_s=0.0)


def test_what_ranks_tell_survives_the_wire() -> None:
    config = replace(CONFIG, prefill_schedule_interval=4)
    snapshot = replace(rank(config=config), step_counter=3, prefill_capacity_bound=True)
    back = snapshot_from_proto(snapshot_to_proto(snapshot))
    assert (back.step_counter, back.prefill_capacity_bound) == (3, True)
    assert back.config == config
