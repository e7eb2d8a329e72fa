"""A cluster's twins, run forward from a live state."""

from foretell.engine import Sequence as EngineSequence
from foretell.engine import Twin
from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig, EngineSnapshot, RequestState, Slo
from foretell.provision.rollout import Coming, EngineKind, EnginePlace, share_within
from tests.unit.provision_cases import published

STEPS = LinearStepTime((0.02, 1e-4, 0.0, 0.0, 1e-4, 0.0))
KIND = EngineKind(EngineConfig("model", 16, 400, 8, 256, 1024), STEPS.packed())
COMING = [Coming(0.25 * i, 50, 40) for i in range(240)]  # each takes about a second of one seat
TARGET = Slo(1.0, 0.1)


def share(*places: EnginePlace, enough: float = 0.0) -> float:
    return share_within(places, KIND, COMING, TARGET, [0.0], enough)


def busy(waiting: int) -> EnginePlace:
    """An engine with all seats taken and a queue of this length."""
    requests = [
        RequestState(f"r{i}", f"r{i}", 50, 5, 54, 900, 0.0, predicted_output_tokens=200.0)
        for i in range(8)
    ]
    queue = [
        RequestState(f"w{i}", f"w{i}", 50, 0, 0, 900, 0.0, predicted_output_tokens=200.0)
        for i in range(waiting)
    ]
    free = KIND.config.total_blocks - 8 * KIND.config.blocks_for(54)
    state = EngineSnapshot("e", "", 0, 0.0, 0.0, KIND.config, free, requests, queue, (), ())
    return EnginePlace(published(state, STEPS))


def test_enough_engines_keep_the_target_and_too_few_do_not() -> None:
    slow = EngineKind(KIND.config, LinearStepTime((0.06, 1e-4, 0, 0, 1e-4, 0)).packed())

    def of(count: int) -> float:
        return share_within([EnginePlace()] * count, slow, COMING, TARGET, [0.0], 0.0)

    assert of(4) == 1.0
    assert of(1) < 0.5
    assert of(1) < of(2) <= of(4)


def test_what_is_in_progress_counts() -> None:
    assert share(EnginePlace()) == 1.0
    assert share(busy(0)) > share(busy(30))
    assert share(busy(30)) < 0.9


def test_each_span_must_keep_the_target() -> None:
    def of(*begins_s: float) -> float:
        return share_within([busy(30)], KIND, COMING, TARGET, begins_s, 0.0)

    assert of(50.0) == 1.0  # the backlog is gone by then
    assert of(0.0) < 0.9
    assert of(0.0, 10.0, 50.0) < of(0.0)  # the worst span counts


def test_an_instance_helps_once_it_is_ready() -> None:
    late = EnginePlace(None, 40.0)
    assert share(busy(60)) < share(busy(60), late) < share(busy(60), EnginePlace())


def test_where_nobody_is_ready_requests_wait() -> None:
    found = share(EnginePlace(None, 30.0))
    assert 0.05 < found < 0.5  # those that arrive after the others have been served


def test_a_rollout_ends_as_soon_as_it_is_lost() -> None:
    assert share(EnginePlace(None, 59.0), enough=0.99) < 0.99


def test_a_snapshot_continues_as_the_engine_does() -> None:
    """The last request of a queue gets its first token when an uninterrupted twin gives it one."""
    twin = Twin(KIND.config)
    for i in range(20):
        twin.add(EngineSequence(f"r{i}", 50, 30, 0))
    assert len(twin.waiting) == 20
    coming = [Coming(0.0, 50, 2)]
    queue = [
        RequestState(f"r{i}", f"r{i}", 50, 0, 0, 900, 0.0, predicted_output_tokens=30.0)
        for i in range(20)
    ]
    blocks = KIND.config.total_blocks
    state = EngineSnapshot("e", "", 0, 0.0, 0.0, KIND.config, blocks, (), queue, (), ())
    place = EnginePlace(published(state, STEPS))

    def met(ttft_s: float) -> bool:
        found = share_within([place], KIND, coming, Slo(ttft_s), [0.0], 0.0)
        return found == 1.0

    assert not met(1.2)  # two rounds of 30 steps of at least 21 ms come before
    assert met(2.5)
