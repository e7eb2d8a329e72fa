"""The twin's limits on admission and on a request's share of a step."""

from foretell.engine import Sequence, Twin
from foretell.model import EngineConfig


def engine(**changes: object) -> Twin:
    values: dict[str, object] = {
        "block_size_tokens": 16,
        "total_blocks": 100,
        "max_num_seqs": 32,
        "max_num_scheduled_tokens": 64,
        "max_model_len": 1024,
    }
    return Twin(EngineConfig("m", **(values | changes)))  # type: ignore[arg-type]


def tokens(twin: Twin) -> list[int]:
    """The tokens of each request in the next step, in order."""
    batch = twin.schedule()
    assert batch is not None
    twin.complete(batch)
    return [count for _, count in batch.scheduled]


def add(twin: Twin, count: int, prompt: int = 60, output: int = 2) -> None:
    for i in range(count):
        twin.add(Sequence(f"r{i}", prompt, output, output))


def test_an_adaptive_threshold_shares_the_step_among_all_but_never_goes_below_itself() -> None:
    adaptive = {"long_prefill_token_threshold": 8, "long_prefill_token_threshold_adaptive": True}
    two = engine(**adaptive)
    add(two, 2)
    assert tokens(two) == [32, 32]
    many = engine(**adaptive)
    add(many, 16)
    assert tokens(many) == [8] * 8
    # `max_num_batched_tokens` is shared, though a step may schedule fewer tokens.
    less = engine(**adaptive, max_num_batched_tokens=80)
    add(less, 2)
    assert tokens(less) == [40, 24]


def test_the_threshold_counts_those_who_wait() -> None:
    twin = engine(long_prefill_token_threshold=8, max_num_seqs=1)
    add(twin, 2)
    assert tokens(twin) == [8]
    assert tokens(twin) == [8]


def test_the_watermark_does_not_hold_while_nothing_runs() -> None:
    twin = engine(total_blocks=4, watermark_ratio=0.5)
    add(twin, 1, prompt=64, output=1)
    assert tokens(twin) == [64]


def test_a_request_may_take_the_last_block() -> None:
    twin = engine(total_blocks=5)
    add(twin, 2, prompt=30)
    twin.add(Sequence("last", 4, 1, 1))
    assert tokens(twin) == [30, 30, 4]
    assert twin.free_blocks == 1
    exact = engine(total_blocks=4)
    add(exact, 2, prompt=30)
    assert tokens(exact) == [30, 30]


def test_a_prompt_is_admitted_only_if_all_of_it_will_have_blocks() -> None:
    twin = engine(total_blocks=6, max_num_scheduled_tokens=32)
    add(twin, 1, prompt=80)
    twin.add(Sequence("b", 90, 2, 2))  # its first chunk would fit beside the last of the other
    assert [tokens(twin) for _ in range(4)] == [[32], [32], [16], [1]]


def test_without_chunking_a_prompt_as_long_as_what_is_left_fits() -> None:
    twin = engine(enable_chunked_prefill=False)
    add(twin, 2, prompt=32)
    assert tokens(twin) == [32, 32]


def test_a_short_prompt_behind_one_that_does_not_fit_waits() -> None:
    twin = engine(total_blocks=4)
    add(twin, 1, prompt=30, output=5)
    twin.add(Sequence("long", 60, 5, 5))
    twin.add(Sequence("short", 4, 5, 5))
    assert tokens(twin) == [30]
    assert [s.request_id for s in twin.waiting] == ["long", "short"]


def test_the_shape_of_a_step_counts_pairs_from_the_first_token() -> None:
    twin = engine()
    add(twin, 1, prompt=70, output=3)
    twin.add(Sequence("one", 1, 1, 1))
    shapes = []
    for _ in range(3):
        batch = twin.schedule()
        assert batch is not None
        shapes.append(batch.shape)
        twin.complete(batch)
    first, second, third = shapes
    assert (first.prefill_seqs, first.prefill_tokens, first.prefill_pairs) == (1, 64, 64 * 65 // 2)
    # The chunk of 6 after 64 computed tokens; a prompt of one token is a prefill.
    assert (second.prefill_seqs, second.prefill_tokens) == (2, 7)
    assert second.prefill_pairs == 6 * 64 + 6 * 7 // 2 + 1
    assert (third.decode_seqs, third.decode_pairs, third.prefill_seqs) == (1, 71, 0)


def test_what_is_computed_again_is_a_prefill_of_prompt_and_output() -> None:
    twin = engine(total_blocks=4)
    add(twin, 2, prompt=30, output=20)
    resumed = None
    while resumed is None:
        batch = twin.schedule()
        assert batch is not None
        resumed = next((s for s in batch.admitted if s.preemptions), None)
        shape, asked = batch.shape, batch.scheduled[-1][1]
        twin.complete(batch)
    assert resumed.output_tokens == 4  # three before, and one in this step
    assert asked == 33
    assert shape.prefill_pairs == 33 * 34 // 2
