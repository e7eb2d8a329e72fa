"""Orders to a driver: carried out in the background, repeated on failure, never two at a time."""

import asyncio
import logging
from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from foretell.config import ProvisionerSettings
from foretell.services.provisioner import driver as module
from foretell.services.provisioner.__main__ import orders_of
from foretell.services.provisioner.driver import DriverFailed, Orders
from foretell.services.provisioner.tuning import ProvisionerTuning


class Scripted:
    """A driver whose places fail or hang as a test sets."""

    last_first = False

    def __init__(self) -> None:
        self.running: dict[str, bool] = {}
        self.asked: list[tuple[str, str]] = []
        self.failing: dict[str, Exception] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.published: list[str] = []
        self.closed = False

    async def find(self) -> Mapping[str, bool]:
        await self._come_through("")
        return dict(self.running)

    async def start(self, name: str) -> None:
        self.asked.append(("start", name))
        await self._come_through(name)
        self.running[name] = True

    async def end(self, name: str) -> None:
        self.asked.append(("end", name))
        await self._come_through(name)
        del self.running[name]

    async def publish(self, members: str) -> None:
        self.published.append(members)
        if "list" in self.failing:
            raise self.failing["list"]

    async def close(self) -> None:
        self.closed = True

    async def _come_through(self, name: str) -> None:
        if name in self.gates:
            await self.gates[name].wait()
        if name in self.failing:
            raise self.failing[name]


async def settle() -> None:
    """Let all tasks run as far as they can without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_is_wanted_is_started_and_everything_else_ended() -> None:
    driver = Scripted()
    driver.running = {"a": True, "b": False, "left": False}
    orders = Orders(driver)
    assert orders.follow(["a", "b", "c"], "[]") == 0
    await settle()
    assert sorted(driver.asked) == [("end", "left"), ("start", "b"), ("start", "c")]
    assert driver.running == {"a": True, "b": True, "c": True}
    orders.follow(["a", "b", "c"], "[]")
    await settle()
    assert len(driver.asked) == 3
    assert driver.published == ["[]", "[]"]
    await orders.close()
    assert driver.closed


async def test_a_list_that_cannot_be_published_keeps_no_engine_back() -> None:
    driver = Scripted()
    driver.failing["list"] = DriverFailed("forbidden")
    orders = Orders(driver)
    orders.follow(["a"], "[]")
    await settle()
    assert driver.running == {"a": True}
    assert orders.follow(["a"], "[]") == 1
    await orders.close()


async def test_an_order_that_hangs_keeps_no_other_back_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Scripted()
    driver.running, driver.gates = {"a": True}, {"a": asyncio.Event()}
    orders = Orders(driver)
    orders.follow([], "[]")
    await settle()
    assert orders.is_ending("a")
    for _ in range(3):  # it is started once, though it is wanted again
        orders.follow(["a", "b"], "[]")
        await settle()
    assert driver.asked == [("end", "a"), ("start", "b")]
    assert not orders.is_ending("b")
    driver.gates["a"].set()
    await settle()
    assert not orders.is_ending("a")
    orders.follow(["a", "b"], "[]")
    await settle()
    assert driver.asked[2:] == [("start", "a")]

    monkeypatch.setattr(module, "TUNING", ProvisionerTuning(order_s=0.01))
    driver.gates["b"] = asyncio.Event()
    orders.follow(["a"], "[]")
    async with asyncio.timeout(10):
        while not orders.follow(["a"], "[]"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await orders.close()


async def test_while_it_looks_a_place_that_is_not_wanted_may_be_ended_at_any_moment() -> None:
    driver = Scripted()
    driver.gates[""] = asyncio.Event()
    orders = Orders(driver)
    orders.follow(["a"], "[]")
    await settle()
    assert (orders.is_ending("a"), orders.is_ending("b")) == (False, True)
    driver.gates[""].set()
    await settle()
    assert not orders.is_ending("b")
    await orders.close()


@pytest.mark.parametrize("error", [DriverFailed("no such thing"), KeyError("a mistake of ours")])
async def test_what_fails_is_told_once_counted_and_repeated(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Scripted()
    driver.failing["a"] = error
    orders = Orders(driver)
    with caplog.at_level(logging.WARNING):
        failed = 0
        for _ in range(3):
            failed += orders.follow(["a"], "[]")
            await settle()
        failed += orders.follow(["a"], "[]")
        assert failed == 3
    assert len(caplog.records) == 1
    del driver.failing["a"]
    await settle()
    orders.follow(["a"], "[]")
    await settle()
    assert driver.running == {"a": True}
    await orders.close()


async def test_a_driver_that_does_not_say_what_runs_gets_no_orders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Scripted()
    driver.failing[""] = DriverFailed("out of reach")
    orders = Orders(driver)
    orders.follow(["a"], "[]")
    await settle()
    assert orders.follow(["a"], "[]") == 1
    with pytest.raises(OSError, match="out of reach"):
        await orders.found()
    await settle()
    driver.failing.clear()
    monkeypatch.setattr(module, "TUNING", ProvisionerTuning(find_s=0.01))
    driver.gates[""] = asyncio.Event()
    with pytest.raises(OSError, match="TimeoutError"):
        await orders.found()
    assert driver.asked == []
    await orders.close()


@pytest.mark.parametrize("driver", ["docker", "kubernetes"])
def test_a_driver_is_told_what_it_drives(driver: str) -> None:
    with pytest.raises(ValidationError, match=f"{driver} needs driver_target"):
        ProvisionerSettings(driver=driver)


def test_outside_of_a_pod_nothing_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ProvisionerSettings(driver="kubernetes", driver_target="vllm")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SystemExit, match="needs a pod of Kubernetes"):
        orders_of(settings, [])
    assert orders_of(ProvisionerSettings(driver="process"), []) is None
