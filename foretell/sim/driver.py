"""Drives placement cores in virtual time: events in, effects carried out, in order."""

from abc import ABC, abstractmethod
from collections import deque
from functools import partial

from foretell.placement import PlacementCore, effects, events
from foretell.sim.events import Events


class VirtualDriver(ABC):
    """The loop around the cores of all schedulers; a subclass knows the ways to everybody else.

    What a subclass does may come back at once, by another `step`: the effects are then carried out
    after those that were found before.
    """

    def __init__(self, clock: Events) -> None:
        self._clock = clock
        self._todo: deque[tuple[PlacementCore, effects.Effect]] = deque()
        self._working = False

    def step(self, core: PlacementCore, event: events.Event) -> None:
        """Tell a core of `event`, do what it wants done, and what follows from that."""
        for found in core.step(event, self._clock.now_s):
            self._todo.append((core, found))
        if self._working:
            return  # the loop below goes on
        self._working = True
        while self._todo:
            self._carry_out(*self._todo.popleft())
        self._working = False

    def _carry_out(self, core: PlacementCore, effect: effects.Effect) -> None:
        match effect:
            case effects.Ask():
                self._ask(core, effect)
            case effects.Review():
                self._review(core, effect)
            case effects.Recall():
                self._recall(core, effect)
            case effects.WaitUntil(key, at_s, ticket):
                told = events.TimePassed(key, ticket)
                self._clock.at(at_s, partial(self.step, core, told))
            case effects.Dispatch():
                self._dispatch(core, effect)
            case effects.Reserve():
                self._reserve(core, effect)
            case effects.GiveUp():
                pass  # no simulated engine hangs
            case effects.Refuse():
                self._refuse(effect)

    @abstractmethod
    def _ask(self, core: PlacementCore, effect: effects.Ask) -> None:
        """Tell `events.Heard`, in time."""

    @abstractmethod
    def _review(self, core: PlacementCore, effect: effects.Review) -> None:
        """Tell `events.Reviewed`, in time."""

    @abstractmethod
    def _recall(self, core: PlacementCore, effect: effects.Recall) -> None:
        """Tell `events.Recalled` or `events.Started`, in time."""

    @abstractmethod
    def _dispatch(self, core: PlacementCore, effect: effects.Dispatch) -> None:
        """Send the request to its engine."""

    @abstractmethod
    def _reserve(self, core: PlacementCore, effect: effects.Reserve) -> None:
        """Tell the predictor of the chosen instance."""

    @abstractmethod
    def _refuse(self, effect: effects.Refuse) -> None:
        """The request has ended without having been served."""
