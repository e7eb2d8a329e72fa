"""The service's driver and the simulator's make the same decisions of the same script of events.

Both drive the same object, so what could differ is how they carry effects out: their order, who is
told twice or not at all, and what comes of clients that leave. Each script draws a cluster,
arrivals, answers, silences, failures and clients that leave from a seed; both drivers meet them at
the same times.
"""

import asyncio
import selectors
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import pytest

from foretell.model import LengthEstimate, Load, Prediction, RequestSpec, Slo
from foretell.placement import PlacementConfig, PlacementCore, effects, events
from foretell.placement.request import Stage
from foretell.policy import make_policy
from foretell.services.scheduler.placing.driver import AsyncDriver
from foretell.sim.driver import VirtualDriver
from foretell.sim.events import Events
from tests.sweeps import cases

pytestmark = pytest.mark.sweep

SCRIPTS, AT_ONCE = cases(10_000, 1_000), 500
POLICIES = ("slo", "least_outstanding", "round_robin", "infaas", "predicted_latency", "random")
LENGTH = LengthEstimate(33.0)

Decision = tuple[str, str, int]
"""A request, the instance that it is sent to or why it is refused, and which attempt that is."""


class Script:
    """All that happens to a scheduler, whoever drives it, as a function of a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        draws = Random(seed)
        self.policy = draws.choice(POLICIES)
        self.instances = [f"engine-{number}" for number in range(draws.randint(1, 4))]
        self.config = PlacementConfig(
            candidates=draws.choice([0, 2]),
            max_attempts=draws.randint(1, 3),
            retry_pause_s=draws.choice([0.0, 0.01]),
            turn_deadline_s=draws.choice([0.005, 0.4]),
        )
        at_s = 0.0
        self.arrivals: list[tuple[float, events.Arrived]] = []
        for number in range(draws.randint(2, 8)):
            at_s += draws.expovariate(100.0)
            self.arrivals.append((at_s, self._arrival(f"r{number}", draws)))
        keys = [arrived.spec.request_id for _, arrived in self.arrivals]
        self.leaves = {key: draws.uniform(0.0, 2 * at_s) for key in keys if draws.random() < 0.15}
        self.downs = [
            (draws.uniform(0.0, at_s), name) for name in self.instances if draws.random() < 0.2
        ]

    def core(self) -> PlacementCore:
        """A fresh one, with all instances up."""
        core = PlacementCore(make_policy(self.policy), self.config, Random(self.seed).random)
        for name in self.instances:
            core.step(events.InstanceUp(name), 0.0)
        return core

    def answers(self, effect: effects.Ask, time: int) -> tuple[float, list[events.Answer]]:
        """When the predictors have answered for the so many-th `time`, and what."""
        draws = self._draws("answers", effect.key, time)
        return draws.uniform(0.001, 0.01), [
            self._answer(name, draws) for name in effect.instance_ids
        ]

    def reviewed(self, effect: effects.Review, time: int) -> events.Reviewed:
        """What is known at once of how long a request waits, here and elsewhere."""
        draws = self._draws("review", effect.key, time)
        wait_s = draws.choice([None, 0.1, 5.0, 5.0])
        return events.Reviewed(
            effect.key,
            wait_s,
            [self._answer(name, draws) for name in effect.others],
            begun=wait_s is None and draws.random() < 0.5,
        )

    def gives_back(self, key: str) -> bool:
        """Whether an engine has not begun with the request that is called back."""
        return self._draws("back", key).random() < 0.8

    def outcome(self, effect: effects.Dispatch) -> tuple[float, bool]:
        """When the attempt ends, and whether it fails before its first token."""
        draws = self._draws("outcome", effect.key, effect.attempt)
        return draws.uniform(0.005, 0.6), draws.random() < 0.3

    def _draws(self, *what: object) -> Random:
        return Random(f"{self.seed} {what}")

    def _arrival(self, key: str, draws: Random) -> events.Arrived:
        slo = Slo(draws.choice([float("inf"), 0.5]))
        spec = RequestSpec(key, 100, 0, LENGTH, draws.choice([0, 0, 1]), slo=slo)
        late = draws.choice(["serve", "reject"])
        return events.Arrived(spec, "", late)

    def _answer(self, name: str, draws: Random) -> events.Answer:
        if draws.random() < 0.2:
            return events.Answer(name, silent=True)
        waiting = draws.choice([0, 2])
        load = Load(draws.randint(0, 8), waiting, 0, draws.randint(0, 100), 100, 0, 8)
        ttft_s = draws.uniform(0.01, 1.0)
        told = Prediction(name, ttft_s, ttft_s + 1, 0.01, 0.0, 0.0, load, 100)
        return events.Answer(name, load, told)


@dataclass(slots=True)
class Asked:
    """How often each request has been asked about."""

    times: dict[str, int]

    def next(self, key: str) -> int:
        self.times[key] = self.times.get(key, 0) + 1
        return self.times[key]


class Simulated(VirtualDriver):
    """A script in the simulator's virtual time."""

    def __init__(self, script: Script) -> None:
        self.clock = Events()
        super().__init__(self.clock)
        self.script, self.core, self.recalled = script, script.core(), 0
        self.asked, self.decisions, self.left = Asked({}), list[Decision](), set[str]()
        self.attempts: dict[str, int] = {}

    def run(self) -> list[Decision]:
        for at_s, arrived in self.script.arrivals:
            self._at(at_s, arrived)
        for at_s, name in self.script.downs:
            self._at(at_s, events.InstanceDown(name))
        for key, at_s in self.script.leaves.items():
            self.clock.at(at_s, partial(self._leave, key))
        self.clock.run(lambda until_s: False)
        self.core.check_idle()
        return self.decisions

    def _leave(self, key: str) -> None:
        stage = self.core.stage(key)
        self.left.add(key)
        if stage is not None:
            sent = stage in (Stage.END, Stage.RECALL)
            gone = events.Ended(key) if sent else events.Gone(key)
            self.step(self.core, gone)

    def _at(self, at_s: float, event: events.Event) -> None:
        self.clock.at(at_s, partial(self._happen, event))

    def _happen(self, event: events.Event) -> None:
        ends = isinstance(event, events.Arrived | events.Failed | events.Ended | events.Recalled)
        key = event.spec.request_id if isinstance(event, events.Arrived) else None
        if not (ends and (key or getattr(event, "key", "")) in self.left):
            self.step(self.core, event)

    def _after(self, delay_s: float, event: events.Event) -> None:
        self._at(self.clock.now_s + delay_s, event)

    def _ask(self, core: PlacementCore, effect: effects.Ask) -> None:
        delay_s, answers = self.script.answers(effect, self.asked.next(effect.key))
        self._after(delay_s, events.Heard(effect.key, answers))

    def _dispatch(self, core: PlacementCore, effect: effects.Dispatch) -> None:
        self.decisions.append((effect.key, effect.instance_id, effect.attempt))
        delay_s, fails = self.script.outcome(effect)
        event = events.Failed(effect.key) if fails else events.Ended(effect.key)
        self.attempts[effect.key] = effect.attempt
        self.clock.after(delay_s, partial(self._attempt_ends, event, effect.attempt))

    def _attempt_ends(self, event: events.Failed | events.Ended, attempt: int) -> None:
        if self.attempts[event.key] == attempt:
            self._happen(event)

    def _review(self, core: PlacementCore, effect: effects.Review) -> None:
        self.step(core, self.script.reviewed(effect, self.asked.next(effect.key)))

    def _recall(self, core: PlacementCore, effect: effects.Recall) -> None:
        if self.script.gives_back(effect.key):
            self.recalled += 1
            self.attempts[effect.key] = 0
            self.clock.after(0.0, partial(self._happen, events.Recalled(effect.key)))
        else:
            self.step(core, events.Started(effect.key))

    def _reserve(self, core: PlacementCore, effect: effects.Reserve) -> None:
        pass

    def _refuse(self, effect: effects.Refuse) -> None:
        self.decisions.append((effect.key, effect.because, 0))


class Refused(Exception):
    """A request has ended without having been served."""


class Served(AsyncDriver[effects.Dispatch]):
    """A script as the service would drive it, on an event loop with virtual time."""

    def __init__(self, script: Script) -> None:
        super().__init__(script.core())
        self.script = script
        self.asked, self.decisions = Asked({}), list[Decision]()
        self.back: dict[str, asyncio.Future[None]] = {}

    async def run(self) -> list[Decision]:
        start_s = self._loop.time()
        for at_s, name in self.script.downs:
            self._loop.call_at(start_s + at_s, self.tell, events.InstanceDown(name))
        clients = {
            arrived.spec.request_id: self._loop.create_task(self._client(start_s + at_s, arrived))
            for at_s, arrived in self.script.arrivals
        }
        for key, at_s in self.script.leaves.items():
            self._loop.call_at(start_s + at_s, clients[key].cancel)
        await asyncio.gather(*clients.values(), return_exceptions=True)
        self.core.check_idle()
        return self.decisions

    async def _client(self, at_s: float, arrived: events.Arrived) -> None:
        """As the relay does it: place, send, and place again after a failure."""
        await asyncio.sleep(at_s - self._loop.time())
        told: events.Arrived | events.Failed | events.Recalled = arrived
        key, fails = arrived.spec.request_id, True
        while fails:
            placed = await self._placed_after(key, told)
            delay_s, fails = self.script.outcome(placed)
            back = self.back[key] = self._loop.create_future()
            try:
                await asyncio.wait({back}, timeout=delay_s)
            except asyncio.CancelledError:
                self.tell(events.Ended(key))
                raise
            told = events.Failed(key)
            if back.done():
                told, fails = events.Recalled(key), True
        self.tell(events.Ended(key))

    def _review(self, effect: effects.Review) -> events.Reviewed:
        return self.script.reviewed(effect, self.asked.next(effect.key))

    def _take_back(self, key: str) -> bool:
        if not self.script.gives_back(key):
            return False
        self.back[key].set_result(None)
        return True

    async def _ask(self, effect: effects.Ask) -> Sequence[events.Answer]:
        delay_s, answers = self.script.answers(effect, self.asked.next(effect.key))
        await asyncio.sleep(delay_s)
        return answers

    def _dispatched(self, effect: effects.Dispatch) -> effects.Dispatch:
        self.decisions.append((effect.key, effect.instance_id, effect.attempt))
        return effect

    def _refused(self, effect: effects.Refuse) -> Exception:
        self.decisions.append((effect.key, effect.because, 0))
        return Refused(effect.because)

    def _reserve(self, effect: effects.Reserve) -> None:
        pass

    def _unsent(self, key: str) -> None:
        pass

    def _degraded(self, effect: effects.Degraded) -> None:
        pass


class _Jumping(selectors.DefaultSelector):
    """Never waits: what would take time has passed already."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout > 0:
            self.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop without sockets, whose clock jumps to the next timer."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


@pytest.mark.parametrize("first", range(0, SCRIPTS, AT_ONCE))
def test_both_drivers_decide_alike_on_random_scripts(first: int) -> None:
    found: list[Decision] = []
    recalled = 0
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        for seed in range(first, first + AT_ONCE):
            script = Script(seed)
            simulation = Simulated(script)
            simulated = simulation.run()
            recalled += simulation.recalled
            served = runner.run(_served(script))
            assert served == simulated, f"seed {seed}; replay: pytest {__file__} -k '[{first}]'"
            found += simulated
    attempts = [attempt for _, _, attempt in found]
    refused, retried = attempts.count(0), sum(attempt > 1 for attempt in attempts)
    assert min(refused, retried, 4 * recalled) > AT_ONCE // 20, "the scripts try too little"


async def _served(script: Script) -> list[Decision]:
    return await Served(script).run()
