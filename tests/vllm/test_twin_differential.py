"""Compares the twin with vLLM's real scheduler, iteration by iteration, on random scenarios."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest
from random import Random
from typing import Any

import pytest

from foretell.engine import restore_twin
from foretell.engine.loop import EngineLoop
from foretell.engine.replay import aborts, arrivals, grammars, replay, run
from foretell.engine.scenario import Scenario, parse_scenario
from foretell.model import EngineSnapshot, RequestState
from foretell.tools.verify.scenarios import (
    DRAFTS,
    IMAGES,
    LOCAL_ATTENTION,
    MODES,
    QUEUES,
    random_scenario,
)

pytestmark = pytest.mark.vllm

recorder = pytest.importorskip(
    "foretell.tools.verify.recorder", reason="needs vLLM: make test-vllm"
)
driver = pytest.importorskip("foretell.tools.verify.installed", reason="needs vLLM: make test-vllm")

# Other versions than the newest on the CPU get a share of them (make test-vllm-matrix).
SHARE = float(os.environ.get("FORETELL_VLLM_SEEDS", "1"))
SEEDS_OF_A_MODE = int(520 * SHARE)
SEEDS_FROM_THE_MIDDLE = int(120 * SHARE)
SEEDS_OF_IMAGES = int(130 * SHARE)  # of each kind of multimodal inputs
SEEDS_OF_DRAFTS = int(130 * SHARE)  # of each kind of drafts and of waiting
SEEDS_OF_LOCAL_ATTENTION = int(50 * SHARE)  # of each kind of local attention


def assert_equal(ours: Iterable[Any], theirs: Iterable[Any], seed: int, mode: str) -> None:
    """Compare record by record; the order of what was scheduled counts, too."""
    for mine, real in zip_longest(ours, theirs):
        same = mine == real and list(mine["sched"] or ()) == list(real["sched"] or ())
        assert same, (
            f"first difference\ntwin: {mine}\nvLLM: {real}\nreplay with "
            f"`python -m foretell.tools.verify.compare {seed} {mode}`"
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(SEEDS_OF_A_MODE))
def test_the_twin_does_what_vllm_does(seed: int, mode: str) -> None:
    scenario = parse_scenario(driver.as_installed(random_scenario(seed, mode)))
    assert_equal(replay(scenario), recorder.record(scenario), seed, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [*DRAFTS, *QUEUES])
@pytest.mark.parametrize("seed", range(SEEDS_OF_DRAFTS))
def test_the_twin_verifies_drafts_and_passes_over_as_vllm_does(
    seed: int, kind: str, mode: str
) -> None:
    if kind in QUEUES and not driver.PASSES_OVER_IN_PLACE:
        pytest.skip("a queue of its own, which the twin does not have")
    scenario = parse_scenario(driver.as_installed(random_scenario(seed, mode, kind)))
    assert_equal(replay(scenario), recorder.record(scenario), seed, f"{mode} {kind}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("seed", range(SEEDS_OF_IMAGES))
def test_the_twin_encodes_images_as_vllm_does(seed: int, kind: str, mode: str) -> None:
    if not driver.KNOWS_ENCODING:
        pytest.skip("another encoder cache, which is told as an approximation")
    scenario = parse_scenario(driver.as_installed(random_scenario(seed, mode, kind)))
    assert_equal(replay(scenario), recorder.record(scenario), seed, f"{mode} '{kind}'")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("attention", LOCAL_ATTENTION)
@pytest.mark.parametrize("seed", range(SEEDS_OF_LOCAL_ATTENTION))
def test_the_twin_frees_blocks_of_local_attention_as_vllm_does(
    seed: int, attention: str, mode: str
) -> None:
    scenario = parse_scenario(driver.as_installed(random_scenario(seed, mode, attention)))
    assert_equal(replay(scenario), recorder.record(scenario), seed, f"{mode} '{attention}'")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(SEEDS_FROM_THE_MIDDLE))
def test_a_twin_restored_from_any_snapshot_goes_on_as_vllm_does(seed: int, mode: str) -> None:
    _assert_goes_on(random_scenario(seed, mode), seed, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize("seed", range(SEEDS_FROM_THE_MIDDLE // 2))
def test_a_restored_twin_knows_what_is_drafted(seed: int, kind: str, mode: str) -> None:
    _assert_goes_on(random_scenario(seed, mode, kind), seed, f"{mode} {kind}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("seed", range(SEEDS_OF_IMAGES // 2))
def test_a_restored_twin_knows_what_is_encoded(seed: int, kind: str, mode: str) -> None:
    if not driver.KNOWS_ENCODING:
        pytest.skip("another encoder cache, which is told as an approximation")
    _assert_goes_on(random_scenario(seed, mode, kind), seed, f"{mode} '{kind}'")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("attention", LOCAL_ATTENTION)
@pytest.mark.parametrize("seed", range(SEEDS_OF_LOCAL_ATTENTION // 2))
def test_a_restored_twin_knows_what_local_attention_holds(
    seed: int, attention: str, mode: str
) -> None:
    _assert_goes_on(random_scenario(seed, mode, attention), seed, f"{mode} '{attention}'")


def _assert_goes_on(scenario_data: dict[str, Any], seed: int, mode: str) -> None:
    data = driver.as_installed(scenario_data)
    data["config"]["enable_prefix_caching"] = False  # a snapshot does not contain the tokens
    scenario = parse_scenario(data)
    snapshots: dict[int, EngineSnapshot] = {}
    theirs = list(recorder.record(scenario, snapshots=snapshots))
    taken = Random(seed).choice(sorted(snapshots.keys() - _just_preempted(theirs)))
    assert_equal(
        filter(_does_something, _from_the_middle(scenario, snapshots[taken], taken)),
        [line for line in theirs if line["step"] > taken and _does_something(line)],
        seed,
        mode,
    )


def _just_preempted(lines: Iterable[Any]) -> set[int]:
    """Steps after which a preempted request may have output in flight, which no snapshot shows."""
    return {line["step"] + late for line in lines if line.get("preempted") for late in (0, 1)}


def _does_something(line: Mapping[str, Any]) -> bool:
    """False for iterations that only flush finished requests: a snapshot does not show them."""
    return bool(line["sched"] or line["finished"] or line["aborted"] or line.get("preempted"))


def _from_the_middle(scenario: Scenario, snapshot: EngineSnapshot, step: int) -> Iterable[Any]:
    requests = {request.id: request for request in scenario.requests}

    def true_length(state: RequestState) -> float:
        request = requests[state.request_id]
        return float(request.stop_after or request.max_tokens)

    config = scenario.config
    snapshot = replace(
        snapshot, drafted_ratio=config.drafted_ratio, accepted_ratio=config.accepted_ratio
    )
    twin, in_flight = restore_twin(snapshot, true_length)
    loop = EngineLoop([twin], [[batch] for batch in in_flight])
    chose_nothing = not any(state.scheduled_tokens for state in snapshot.running)
    if in_flight and (len(in_flight) == twin.max_steps_in_flight or chose_nothing):
        loop.apply_output()
    to_come = [arrival for arrival in arrivals(scenario) if arrival[0] > step]
    return run(loop, to_come, aborts(scenario), grammars(scenario), step + 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", IMAGES)
def test_the_images_are_worth_running(kind: str, mode: str) -> None:
    """With room for all images, most scenarios would be scheduled differently."""
    differ = 0
    for seed in range(60):
        data = random_scenario(seed, mode, kind)
        room = dict.fromkeys(("max_num_encoder_input_tokens", "encoder_cache_size"), 10**6)
        roomy = data | {"config": data["config"] | room | {"disable_chunked_mm_input": False}}
        differ += list(replay(parse_scenario(data))) != list(replay(parse_scenario(roomy)))
    assert differ >= 15


@pytest.mark.parametrize("attention", ["full", *DRAFTS, *QUEUES, *IMAGES, *LOCAL_ATTENTION])
def test_the_scenarios_are_worth_running(attention: str) -> None:
    """What is to be compared does occur: otherwise the comparison would show nothing."""
    seen: dict[str, int] = dict.fromkeys(("preempted", "resumed", "aborted", "finished"), 0)
    hits = hits_after_preemption = 0
    for seed in range(100):
        for line in replay(parse_scenario(random_scenario(seed, "async", attention))):
            for key in seen:
                seen[key] += len(line.get(key, ()))
            cached = line.get("cached", {})
            hits += sum(map(bool, cached.values()))
            hits_after_preemption += sum(bool(cached[name]) for name in line.get("resumed", ()))
    assert min(*seen.values(), hits, hits_after_preemption) >= 50, (seen, hits)
