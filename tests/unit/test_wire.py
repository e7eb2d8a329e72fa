"""Messages survive encoding, and contradictory ones are refused."""

import math
from dataclasses import replace

import pytest

from foretell import wire
from foretell.model import (
    BatchShape,
    CachedInput,
    EncoderInput,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    RequestSpec,
    RequestState,
    Slo,
    Step,
    Turn,
)
from foretell.v1 import predictor_pb2, snapshot_pb2, tagger_pb2

STATE = RequestState("chatcmpl-1", "1", 12, 3, 14, 100, 5.5, 0, -2, 80.5, 1, 1, 2, 1)
STEP = Step(7, 1.5, 0.25, BatchShape(1, 2, 3, 4, 5, 6))
CONFIG = EngineConfig(
    "m",
    16,
    100,
    8,
    64,
    1024,
    policy="priority",
    emulated=True,
    approximations=("LoRA", "x"),
    kv_cache_groups=3,
    local_kv_cache_groups=2,
    sliding_window_tokens=128,
)
SNAPSHOT = EngineSnapshot(
    "e0", "run", 9, 1.0, 2.0, CONFIG, 42, (STATE, STATE), (STATE,), (STEP,), (STEP, STEP)
)
SPEC = RequestSpec(
    "r",
    10,
    20,
    LengthEstimate(15.0, ((0.5, 12.0), (0.9, 30.0)), "history"),
    -1,
    2,
    x_request_id="x",
)


def test_nouns_survive_a_round_trip() -> None:
    raw = wire.snapshot_to_proto(SNAPSHOT).SerializeToString()
    assert wire.snapshot_from_proto(snapshot_pb2.EngineSnapshot.FromString(raw)) == SNAPSHOT
    told = replace(STATE, ttft_target_s=1.0, tpot_target_s=0.05)
    config = replace(CONFIG, co_schedules=True)
    beside = replace(SNAPSHOT, config=config, running=(told, STATE), usual_online_blocks=7.5)
    for expected_s in (0.0, 0.5, math.inf):
        one = replace(beside, online_ttft_s=expected_s)
        raw = wire.snapshot_to_proto(one).SerializeToString()
        assert wire.snapshot_from_proto(snapshot_pb2.EngineSnapshot.FromString(raw)) == one
    drafting = replace(CONFIG, num_speculative_tokens=3, drops_last_hit=True, max_loras=2)
    told = replace(STATE, held_blocks=3, adapter=2, awaits_grammar=1)
    one = replace(SNAPSHOT, config=drafting, running=(told, STATE), waiting=(told,))
    one = replace(one, drafted_ratio=(1.0, 0.5), accepted_ratio=(0.75, 0.0))
    raw = wire.snapshot_to_proto(one).SerializeToString()
    assert wire.snapshot_from_proto(snapshot_pb2.EngineSnapshot.FromString(raw)) == one
    named = SPEC._replace(prefix=(0, 2**64 - 1), prefix_chunk_tokens=127.5)
    later = SPEC._replace(turn=Turn(2**64 - 1, 1, 12.5))
    for spec in (
        SPEC,
        named,
        later,
        SPEC._replace(slo=Slo(0.5)),
        SPEC._replace(slo=Slo(1.0, 0.05)),
    ):
        assert wire.request_from_proto(wire.request_to_proto(spec)) == spec


@pytest.mark.parametrize("told", [[""], ["a" * 65], ["a\r\nb: c"], ["ö"], ["a"] * 33])
def test_approximations_fit_into_headers_and_labels(told: list[str]) -> None:
    message = wire.config_to_proto(CONFIG)
    message.approximations.extend(told)
    with pytest.raises(wire.WireError, match="approximations"):
        wire.config_from_proto(message)


def test_what_all_running_requests_have_grown_by_is_added() -> None:
    message = wire.snapshot_to_proto(SNAPSHOT)
    message.grown_computed_tokens, message.grown_output_tokens = 5, 4
    message.grown_in_flight_tokens = 1
    grown = wire.snapshot_from_proto(message)
    for before, after in zip(SNAPSHOT.running, grown.running, strict=True):
        assert after == replace(
            before,
            computed_tokens=before.computed_tokens + 5,
            output_tokens=before.output_tokens + 4,
            in_flight_tokens=before.in_flight_tokens + 1,
            scheduled_tokens=1,
        )
    assert list(grown.waiting) == list(SNAPSHOT.waiting)
    message.grown_in_flight_tokens = -100
    with pytest.raises(wire.WireError, match="in flight"):
        wire.snapshot_from_proto(message)


def test_columns_of_different_length_are_refused() -> None:
    message = wire.snapshot_to_proto(SNAPSHOT)
    message.running.priority.append(1)
    with pytest.raises(wire.WireError, match="differ in length"):
        wire.snapshot_from_proto(message)


def test_an_engine_need_not_tell_targets() -> None:
    message = wire.snapshot_to_proto(SNAPSHOT)
    message.running.ClearField("ttft_target_s")
    message.running.ClearField("tpot_target_s")
    assert wire.snapshot_from_proto(message) == SNAPSHOT


@pytest.mark.parametrize("lie", [math.nan, -1.0, math.inf])
def test_targets_that_are_no_durations_are_refused(lie: float) -> None:
    message = wire.snapshot_to_proto(SNAPSHOT)
    message.waiting.tpot_target_s[:] = [lie] * len(message.waiting.request_id)
    with pytest.raises(wire.WireError, match="tpot_target_s"):
        wire.snapshot_from_proto(message)
    asked = wire.request_to_proto(SPEC)
    asked.ttft_target_s = lie
    with pytest.raises(wire.WireError, match="targets"):
        wire.request_from_proto(asked)


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        ("online_ttft_s", math.nan),
        ("online_ttft_s", -1.0),
        ("usual_online_blocks", math.inf),
    ],
)
def test_expectations_that_cannot_be_are_refused(name: str, lie: float) -> None:
    message = wire.snapshot_to_proto(SNAPSHOT)
    setattr(message, name, lie)
    with pytest.raises(wire.WireError, match="expected"):
        wire.snapshot_from_proto(message)


@pytest.mark.parametrize("lie", [(0.5, 0.6), (1.5,), (math.nan,), (0.5, -0.1)])
def test_shares_of_draft_tokens_that_cannot_be_are_refused(lie: tuple[float, ...]) -> None:
    for name in ("drafted_ratio", "accepted_ratio"):
        message = wire.snapshot_to_proto(replace(SNAPSHOT, **{name: lie}))
        with pytest.raises(wire.WireError, match="draft tokens"):
            wire.snapshot_from_proto(message)


def test_an_impossible_configuration_is_refused() -> None:
    message = wire.snapshot_to_proto(SNAPSHOT)
    message.config.block_size_tokens = 0
    with pytest.raises(wire.WireError, match="block_size_tokens"):
        wire.snapshot_from_proto(message)


@pytest.mark.parametrize(
    "lie",
    [
        {"local_kv_cache_groups": 4},
        {"kv_cache_groups": 2000},
        {"sliding_window_tokens": 1},
        {"sliding_window_tokens": 0, "attention_chunk_tokens": 24},
    ],
)
def test_impossible_kv_cache_groups_are_refused(lie: dict[str, int]) -> None:
    with pytest.raises(wire.WireError, match="engine config"):
        wire.config_from_proto(wire.config_to_proto(replace(CONFIG, **lie)))  # type: ignore[arg-type]


def test_an_engine_that_tells_nothing_of_groups_has_one_and_leaves_no_blocks() -> None:
    message = wire.snapshot_to_proto(SNAPSHOT)
    for name in ("kv_cache_groups", "local_kv_cache_groups", "sliding_window_tokens"):
        message.config.ClearField(name)
    message.running.ClearField("left_blocks")
    seen = wire.snapshot_from_proto(message)
    assert (seen.config.kv_cache_groups, seen.config.attends_locally) == (1, False)
    assert [row.left_blocks for row in seen.running] == [0, 0]


def test_a_request_without_a_prompt_is_refused() -> None:
    with pytest.raises(wire.WireError, match="prompt_tokens"):
        wire.request_from_proto(predictor_pb2.RequestSpec(request_id="r"))


@pytest.mark.parametrize("tokens", [0.0, 0.5, -1.0, math.inf, math.nan])
def test_a_prefix_of_chunks_without_tokens_is_refused(tokens: float) -> None:
    message = wire.request_to_proto(SPEC._replace(prefix=(1,), prefix_chunk_tokens=tokens))
    with pytest.raises(wire.WireError, match="prefix_chunk_tokens"):
        wire.request_from_proto(message)


@pytest.mark.parametrize("tokens", [-1.0, math.inf, math.nan])
def test_an_answer_of_impossible_length_is_refused(tokens: float) -> None:
    message = wire.request_to_proto(SPEC._replace(turn=Turn(1, 2, tokens)))
    with pytest.raises(wire.WireError, match="answered_tokens"):
        wire.request_from_proto(message)


@pytest.mark.parametrize("levels", [(0.0,), (1.0,), (0.5, 0.5), (0.9, 0.5), (math.nan,)])
def test_levels_that_do_not_ascend_within_0_and_1_are_refused(levels: tuple[float, ...]) -> None:
    message = tagger_pb2.LengthEstimate(expected_tokens=10.0)
    for level in levels:
        message.quantiles.add(level=level, tokens=10.0)
    with pytest.raises(wire.WireError, match="levels"):
        wire.length_from_proto(message)


IMAGES = (EncoderInput(2**64 - 1, 0, 4, 3, 1, 4, 1), EncoderInput(7, 5, 7, 7, 0, 7))
SEEING = replace(CONFIG, max_num_encoder_input_tokens=64, encoder_cache_size=10)
ILLUSTRATED = replace(
    SNAPSHOT,
    config=SEEING,
    running=(STATE, replace(STATE, encoder_inputs=IMAGES)),
    encoder_cache=(CachedInput(0, 5), CachedInput(2**64 - 1, 3)),
)


def test_multimodal_inputs_survive_a_round_trip() -> None:
    raw = wire.snapshot_to_proto(ILLUSTRATED).SerializeToString()
    seen = wire.snapshot_from_proto(snapshot_pb2.EngineSnapshot.FromString(raw))
    assert seen == ILLUSTRATED
    assert seen.running[1].encoder_inputs == IMAGES
    assert list(seen.running.encoder_inputs) == [(), IMAGES]


@pytest.mark.parametrize(
    "inputs",
    [
        (IMAGES[1], IMAGES[0]),  # not in order
        (IMAGES[0], IMAGES[0]),  # at the same place
        (IMAGES[1]._replace(length=8),),  # beyond the prompt
        (IMAGES[1]._replace(end_embed=8),),
        (IMAGES[1]._replace(embeds=8),),
        (IMAGES[1]._replace(first_embed=7, end_embed=6),),
        (IMAGES[1]._replace(held=1),),  # it is not in the cache
    ],
)
def test_inputs_that_no_prompt_can_have_are_refused(inputs: tuple[EncoderInput, ...]) -> None:
    state = replace(STATE, encoder_inputs=inputs)
    for queue in ("running", "waiting"):
        message = wire.snapshot_to_proto(replace(ILLUSTRATED, **{queue: (state,)}))
        with pytest.raises(wire.WireError, match="encoder"):
            wire.snapshot_from_proto(message)


def test_an_encoder_cache_that_cannot_be_is_refused() -> None:
    first, second = ILLUSTRATED.encoder_cache
    for cache in ((first, second, first), (first, second._replace(embeds=6))):
        with pytest.raises(wire.WireError, match="encoder cache"):
            wire.snapshot_from_proto(
                wire.snapshot_to_proto(replace(ILLUSTRATED, encoder_cache=cache))
            )
    message = wire.snapshot_to_proto(ILLUSTRATED)
    message.encoder_cache_embeds.append(1)
    with pytest.raises(wire.WireError, match="differ in length"):
        wire.snapshot_from_proto(message)
    message = wire.snapshot_to_proto(ILLUSTRATED)
    message.running.inputs.offset.pop()
    with pytest.raises(wire.WireError, match="differ in length"):
        wire.snapshot_from_proto(message)
    message = wire.snapshot_to_proto(ILLUSTRATED)
    message.config.encoder_cache_size = 2**31
    with pytest.raises(wire.WireError, match="out of range"):
        wire.snapshot_from_proto(message)
    for late_s in (-0.1, 2.0, float("nan"), float("inf")):
        message = wire.snapshot_to_proto(ILLUSTRATED)
        message.config.reported_within_s = late_s
        with pytest.raises(wire.WireError, match="reported_within_s is out of range"):
            wire.snapshot_from_proto(message)
