"""The state of engines that are started and stopped: a replica that takes over continues it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from foretell.config.instances import InstanceConfig, parse_members
from foretell.provision import InstancePhase, ProvisionDecision
from foretell.services.provisioner import places
from foretell.services.provisioner.lease import FileLease, LeaseLost
from foretell.services.provisioner.places import EnginePlaces
from foretell.services.provisioner.tuning import TUNING

PLACES = [InstanceConfig(f"engine-{i}", f"http://127.0.0.1:{8100 + i}") for i in range(2)]


class World:
    """Engines that answer when a test sets it, and a fleet that can be lost at any time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answering: set[str] = set()
        self.empty: set[str] = set()
        self.lease = FileLease(folder, "a")
        assert self.lease.take()

    def fleet(self, orders: Any = None) -> EnginePlaces:
        """A fleet that knows only the contents of the files."""
        return EnginePlaces(
            self.folder,
            PLACES,
            ["m"],
            None,  # type: ignore[arg-type]  # nothing is asked over HTTP here
            self.lease,
            lambda name, now_s: name in self.empty,
            orders,
        )

    async def answers(self, client: aiohttp.ClientSession, url: str) -> bool:
        return url in self.answering

    def listed(self) -> dict[str, bool]:
        """What schedulers read: the instances, and whether each is draining."""
        members = parse_members((self.folder / "instances.json").read_text())
        assert members.models == ("m",)
        return {each.instance_id: each.draining for each in members.instances}

    def wanted(self) -> dict[str, str]:
        """The engines that should run, with their phases."""
        state: dict[str, Any] = json.loads((self.folder / "engines.json").read_text())
        return {name: engine["phase"] for name, engine in state.items()}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(places, "answers", made.answers)
    yield made
    made.lease.release()


def order(**what: Any) -> ProvisionDecision:
    return ProvisionDecision(0.0, 1, "strategy", "for a test", None, 0.0, **what)


async def test_every_step_is_found_again_by_a_successor(world: World) -> None:
    await world.fleet().look(0.0)
    assert world.listed() == {}
    fleet = world.fleet()
    await fleet.look(1.0)
    assert await fleet.act(order(start=3), 1.0) == 1  # there are only two places
    assert (world.wanted(), world.listed()) == ({"engine-0": "warming", "engine-1": "warming"}, {})
    world.answering = {PLACES[0].url}
    fleet = world.fleet()
    seen = await fleet.look(2.0)
    assert [each.phase for each in seen] == [InstancePhase.READY, InstancePhase.WARMING]
    assert seen[1].since_s == 1.0  # its age is kept, so it is still given up in time
    assert world.listed() == {"engine-0": False}
    assert fleet.asked_for == 2
    await fleet.act(order(stop=("engine-1",), drain=("engine-0",)), 2.0)
    assert (world.wanted(), world.listed()) == ({"engine-0": "draining"}, {"engine-0": True})
    assert fleet.asked_for == 0
    fleet = world.fleet()
    (leaving,) = await fleet.look(3.0)
    assert (leaving.phase, leaving.config.draining) == (InstancePhase.DRAINING, True)
    await fleet.act(order(), 3.0)
    assert world.wanted() == {"engine-0": "draining"}  # a client still waits for an answer
    world.empty = {"engine-0"}
    await fleet.act(order(), 4.0)
    assert (world.wanted(), world.listed()) == ({}, {})


class Following:
    """Orders that fail twice at every call, while one place is being ended."""

    def __init__(self, ending: str) -> None:
        self.ending = ending
        self.driver = self
        self.last_first = False
        self.told: list[tuple[set[str], str]] = []

    def is_ending(self, name: str) -> bool:
        return name == self.ending

    async def found(self) -> dict[str, bool]:
        return {}

    def follow(self, wanted: dict[str, Any], members: str) -> int:
        self.told.append((set(wanted), members))
        return 2


async def test_a_driver_follows_and_no_engine_starts_where_one_is_being_ended(
    world: World,
) -> None:
    orders = Following("engine-0")
    fleet = world.fleet(orders)
    await fleet.look(0.0)
    assert await fleet.act(order(start=2), 0.0) == 1 + 2
    listed = (world.folder / "instances.json").read_text()
    assert orders.told == [({"engine-1"}, listed)]
    orders.ending = ""
    assert await fleet.act(order(start=1), 1.0) == 2
    assert orders.told[1][0] == {"engine-0", "engine-1"}


async def test_an_engine_that_is_down_for_long_counts_as_warming(world: World) -> None:
    world.answering = {PLACES[0].url}
    fleet = world.fleet()
    await fleet.look(0.0)
    await fleet.act(order(start=1), 0.0)
    assert (await fleet.look(1.0))[0].phase is InstancePhase.READY
    world.answering = set()
    assert (await fleet.look(1.0 + TUNING.down_s))[0].phase is InstancePhase.READY
    (down,) = await fleet.look(2.0 + TUNING.down_s)
    assert (down.phase, down.since_s) == (InstancePhase.WARMING, 1.0)
    assert world.wanted() == {"engine-0": "ready"}
    world.answering = {PLACES[0].url}
    assert (await fleet.look(20.0))[0].phase is InstancePhase.READY


@pytest.mark.parametrize(
    "text", ["[", "[]", '{"other": {}}', '{"engine-0": {}}', '{"engine-0": 5}']
)
async def test_a_file_that_makes_no_sense_is_left_alone(world: World, text: str) -> None:
    fleet = world.fleet()
    (world.folder / "engines.json").write_text(text)
    with pytest.raises(ValueError, match=r"engine|Expecting"):
        await fleet.look(0.0)
    assert (world.folder / "engines.json").read_text() == text


async def test_who_lost_the_lease_changes_nothing(world: World) -> None:
    fleet = world.fleet()
    await fleet.look(0.0)
    world.lease.release()
    with pytest.raises(LeaseLost):
        await fleet.act(order(start=1), 0.0)
    assert world.wanted() == {}


async def test_what_drains_is_taken_back_and_what_is_gone_is_told(world: World) -> None:
    world.answering = {place.url for place in PLACES}
    fleet = world.fleet()
    await fleet.look(0.0)
    await fleet.act(order(start=2), 0.0)
    await fleet.look(1.0)
    await fleet.act(order(drain=("engine-0", "engine-1")), 1.0)
    world.empty = {"engine-1"}
    assert await fleet.act(order(take_back=("engine-1",)), 2.0) == 0  # before its end has begun
    assert world.wanted() == {"engine-0": "draining", "engine-1": "ready"}
    assert world.listed() == {"engine-0": True, "engine-1": False}
    successor = world.fleet()
    assert [each.phase for each in await successor.look(3.0)] == [
        InstancePhase.DRAINING,
        InstancePhase.READY,
    ]
    await successor.act(order(drain=("engine-1",)), 3.0)
    assert world.wanted() == {"engine-0": "draining"}
    assert await successor.act(order(take_back=("engine-1", "engine-0")), 4.0) == 1
    assert world.wanted() == {"engine-0": "ready"}


async def test_where_only_the_last_can_be_ended_the_first_is_taken_back(world: World) -> None:
    world.answering = {place.url for place in PLACES}
    orders = Following("")
    orders.last_first = True
    fleet = world.fleet(orders)
    await fleet.look(0.0)
    await fleet.act(order(start=2), 0.0)
    await fleet.look(1.0)
    await fleet.act(order(drain=("engine-0", "engine-1")), 1.0)
    await fleet.act(order(take_back=("engine-1",)), 2.0)
    assert world.wanted() == {"engine-0": "ready", "engine-1": "draining"}
