"""Multimodal inputs in the twin: the encoder budget of a step, and the encoder cache."""

from dataclasses import replace

from foretell.engine import Sequence, Twin
from foretell.model import CachedInput, EncoderInput, EngineConfig

CONFIG = EngineConfig(
    "m", 16, 100, 8, 64, 256, max_num_encoder_input_tokens=20, encoder_cache_size=30
)
IMAGE = 16
"""Tokens of an image, all of them embeddings."""


def image(number: int, at: int) -> EncoderInput:
    """The image with this number, which begins at token `at` of a prompt."""
    return EncoderInput(number, at, IMAGE, IMAGE, 0, IMAGE)


def sequence(request_id: str, prompt: int, *inputs: EncoderInput, output: int = 4) -> Sequence:
    return Sequence(request_id, prompt, output, output, inputs=inputs)


def step(twin: Twin) -> dict[str, int]:
    """The tokens that each request computes in one step, which is then completed."""
    batch = twin.schedule()
    assert batch is not None
    twin.complete(batch)
    twin.check()
    return {seq.request_id: tokens for seq, tokens in batch.scheduled}


def holds(twin: Twin, seq: Sequence) -> list[int]:
    return [each.held for each in twin.encoder_inputs(seq)]


def test_a_step_stops_before_an_image_that_its_budget_does_not_allow() -> None:
    twin, seq = Twin(CONFIG), sequence("a", 60, image(1, 5), image(2, 30))
    twin.add(seq)
    assert step(twin) == {"a": 30}
    assert twin.encoder_cache == (CachedInput(1, IMAGE),)
    assert step(twin) == {"a": 30}  # the first image is evicted
    assert twin.encoder_cache == (CachedInput(2, IMAGE),)
    assert step(twin) == {"a": 1}


def test_equal_images_are_encoded_once() -> None:
    twin = Twin(CONFIG)
    twin.add(sequence("a", 20, image(1, 0)))
    twin.add(sequence("b", 20, image(1, 2)))
    assert step(twin) == {"a": 20, "b": 20}
    assert twin.encoder_cache == (CachedInput(1, IMAGE),)


def test_who_waits_with_an_image_in_front_keeps_all_others_waiting() -> None:
    twin = Twin(CONFIG)
    for seq in (sequence("a", 20, image(1, 0)), sequence("b", 20, image(2, 0)), sequence("c", 4)):
        twin.add(seq)
    assert step(twin) == {"a": 20}
    assert step(twin) == {"a": 1, "b": 20, "c": 4}


def test_an_image_is_held_until_it_is_computed() -> None:
    twin = Twin(replace(CONFIG, max_num_scheduled_tokens=10))
    seq = sequence("a", 24, EncoderInput(1, 2, IMAGE, 12, 4, IMAGE))
    twin.add(seq)
    held = []
    for _ in range(3):
        step(twin)
        held.append(holds(twin, seq))
    assert held == [[1], [0], [0]]
    assert twin.engine["encoding"] == 0


def test_an_image_may_have_to_be_computed_in_one_step() -> None:
    twin = Twin(replace(CONFIG, disable_chunked_mm_input=True, max_num_scheduled_tokens=30))
    twin.add(sequence("a", 60, image(1, 20)))
    assert [step(twin)["a"] for _ in range(3)] == [20, 30, 10]


def test_only_tokens_before_the_first_embedding_need_no_room() -> None:
    twin = Twin(replace(CONFIG, max_num_scheduled_tokens=10))
    twin.add(sequence("a", 40, EncoderInput(1, 0, 30, 5, 12, 17)))
    step(twin)
    assert twin.encoder_cache == ()
    step(twin)
    assert twin.encoder_cache == (CachedInput(1, 5),)


def test_preempted_and_aborted_requests_let_go_of_their_images() -> None:
    config = replace(CONFIG, total_blocks=4, max_num_scheduled_tokens=25, reserve_full_isl=False)
    twin = Twin(config)
    first, second = sequence("a", 16, output=40), sequence("b", 48, image(1, 2), image(2, 20))
    twin.add(first)
    twin.add(second)
    assert step(twin) == {"a": 16, "b": 9}
    assert holds(twin, second) == [1, 0]
    assert step(twin) == {"a": 1, "b": 11}
    while not second.preemptions:
        step(twin)
    assert holds(twin, second) == [0, 0]
    assert twin.engine["encoding"] == 0
    third = sequence("c", 40, image(3, 0))
    other = Twin(CONFIG)
    other.add(third)
    other.schedule()
    assert holds(other, third) == [1]
    other.abort("c")
    assert holds(other, third) == [0]
    assert other.encoder_cache == (CachedInput(3, IMAGE),)
    other.check()


def test_what_nobody_needed_longest_makes_way_first() -> None:
    twin = Twin(replace(CONFIG, encoder_cache_size=3 * IMAGE))
    for number, name in enumerate("abc"):
        twin.add(sequence(name, 20, image(number, 0), output=1))
        step(twin)
    twin.add(sequence("d", 20, image(0, 0), output=1))  # the image is used again
    step(twin)
    assert [each.content for each in twin.encoder_cache] == [1, 2, 0]
    twin.add(sequence("e", 20, image(7, 0), output=1))
    step(twin)
    assert [each.content for each in twin.encoder_cache] == [2, 0, 7]


def test_rows_of_ended_requests_are_used_again() -> None:
    twin = Twin(replace(CONFIG, encoder_cache_size=5 * IMAGE, max_num_encoder_input_tokens=64))
    running: list[Sequence] = []
    for number in range(600):
        running.append(
            sequence(f"a{number}", 60, image(number % 90, 1), image(number % 7, 30), output=3)
        )
        twin.add(running[-1])
        step(twin)
    while not twin.idle:
        step(twin)
    assert all(seq.ended for seq in running)
    assert len(twin.live.inputs) < 400
    assert sum(each.embeds for each in twin.encoder_cache) <= 5 * IMAGE
