"""The driver passes events to the core in order, and calls it at the times that it asked for."""

from collections.abc import Callable, Sequence

from foretell.model import LengthEstimate, Prediction, RequestSpec
from foretell.placement import PlacementConfig, PlacementCore, effects, events
from foretell.placement.driver import Driver
from foretell.placement.ports import Predicted, Wait
from foretell.policy import make_policy


class Timer:
    def __init__(self, at_s: float, action: Callable[[], None]) -> None:
        self.at_s, self.action, self.cancelled = at_s, action, False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """A clock, predictions that know nothing, and effects that are only recorded."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.timers: list[Timer] = []
        self.done: list[str] = []
        self.recorded: list[str] = []
        config = PlacementConfig(instance_wait_s=5.0)
        core = PlacementCore(make_policy("least_outstanding"), config, lambda: 0.0, self)
        self.driver = Driver(core, self, self, self.record)

    def now_s(self) -> float:
        return self.time_s

    def at(self, at_s: float, action: Callable[[], None]) -> Timer:
        self.timers.append(Timer(at_s, action))
        return self.timers[-1]

    def record(self, event: events.Event, now_s: float) -> None:
        self.recorded.append(f"{type(event).__name__} {now_s:g}")

    def predict(
        self,
        spec: RequestSpec,
        instance_ids: Sequence[str],
        now_s: float,
        **wanted: object,
    ) -> Predicted:
        return Predicted()

    def predict_one(self, spec: RequestSpec, instance_id: str, now_s: float) -> Prediction | None:
        return None

    def wait(self, spec: RequestSpec, instance_id: str, now_s: float) -> Wait:
        return Wait()

    def dispatch(self, effect: effects.Dispatch) -> None:
        """The engine answers at once, while the event's other effects are still carried out."""
        self.driver.tell(events.Ended(effect.key, answered=True))
        self.done.append(f"dispatch {effect.key}")

    def reserve(self, spec: RequestSpec, instance_id: str, now_s: float) -> None:
        self.done.append(f"reserve {spec.request_id}")

    def refuse(self, effect: effects.Refuse) -> None:
        self.done.append(f"refuse {effect.key}")

    def revise(self, effect: effects.Revise) -> None:
        raise AssertionError

    def recall(self, effect: effects.Recall) -> None:
        raise AssertionError

    def give_up(self, effect: effects.GiveUp) -> None:
        raise AssertionError

    def degraded(self, effect: effects.Degraded) -> None:
        raise AssertionError


def arrived(key: str) -> events.Arrived:
    return events.Arrived(RequestSpec(key, 10, 0, LengthEstimate(9.0)))


def test_what_is_told_while_effects_are_carried_out_comes_behind_them() -> None:
    world = World()
    world.driver.tell(events.InstanceUp("e"))
    world.driver.tell(arrived("r"))
    assert world.done == ["reserve r", "dispatch r"]
    assert world.recorded == ["InstanceUp 0", "Arrived 0", "Ended 0"]
    world.driver.core.check_idle()


def test_the_core_is_told_of_the_time_that_it_asked_for() -> None:
    world = World()
    world.driver.tell(arrived("r"))
    (timer,) = world.timers
    assert timer.at_s == 5.0
    world.time_s = 5.0
    timer.action()
    assert world.done == ["refuse r"]


def test_a_time_that_nobody_waits_for_any_more_is_cancelled() -> None:
    world = World()
    world.driver.tell(arrived("r"))
    world.driver.forget_timer("r")
    assert [timer.cancelled for timer in world.timers] == [True]
    world.driver.forget_timer("r")
