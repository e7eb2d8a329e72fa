"""Discovery against a server that speaks the watch protocol, correctly and wrongly."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from certificates import make_certificate
from fake_watch import ApiServer, make_credentials, pod

from foretell.config.instances import Members
from foretell.discovery import watch as protocol
from foretell.services.process.kubernetes import KubernetesApi
from foretell.services.scheduler import discovery as discovering
from foretell.services.scheduler.discovery import Discovery, is_discovered

WITHIN_S = 20.0


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("account")
    certificate, _ = make_certificate(folder)
    return make_credentials(folder / "account", Path(certificate))


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(protocol, "_LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(discovering, "_TOGETHER_S", 0.0)


class Found:
    """The members that discovery reported, with a way to wait for them."""

    def __init__(self) -> None:
        self.members = Members()
        self.told = 0

    def take(self, members: Members) -> None:
        self.members = members
        self.told += 1

    @property
    def urls(self) -> dict[str, str]:
        return {each.instance_id: each.url for each in self.members.instances}

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():  # noqa: ASYNC110 - of what no event tells
                await asyncio.sleep(0.002)


@asynccontextmanager
async def following(
    server: ApiServer, credentials: Path, **options: Any
) -> AsyncIterator[tuple[Found, Discovery]]:
    async with server.serving():
        api = KubernetesApi(server.url, credentials)
        found = Found()
        discovery = Discovery("pods:app=engine", found.take, api, **options)
        running = asyncio.create_task(discovery.run())
        try:
            yield found, discovery
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await api.close()


def there(server: ApiServer) -> dict[str, str]:
    return {
        name: f"http://{each['status']['podIP']}:8000"
        for name, each in server.objects.items()
        if each["status"]["conditions"][0]["status"] == "True"
    }


@pytest.mark.parametrize(
    ("source", "it_is"),
    [
        ("pods:app=engine", True),
        ("endpointslices:kubernetes.io/service-name=x", True),
        ("pods", False),
        ("/etc/instances.json", False),
        ("[]", False),
    ],
)
def test_a_source_says_what_it_is(source: str, it_is: bool) -> None:
    assert is_discovered(source) == it_is


async def test_pods_come_change_and_go(credentials: Path) -> None:
    server = ApiServer()
    server.put(pod("a", "10.0.0.1", models="m,lora"))
    async with following(server, credentials) as (found, _):
        await found.until(lambda: found.urls == {"a": "http://10.0.0.1:8000"})
        assert found.members.instances[0].predictor == "10.0.0.1:50051"
        assert found.members.instances[0].model == "m"
        assert found.members.models == ("lora", "m")
        server.put(pod("b", "10.0.0.2"))
        await found.until(lambda: set(found.urls) == {"a", "b"})
        server.put(pod("a", "10.0.0.1", terminating=True))
        await found.until(lambda: found.members.instances[0].draining)
        server.remove("a")
        await found.until(lambda: set(found.urls) == {"b"})
        assert server.requests[0]["labelSelector"] == "app=engine"
        assert len(server.requests) == 2, "one list, one watch"


async def test_many_pods_come_in_pages(credentials: Path) -> None:
    server = ApiServer()
    for index in range(2 * protocol.PAGE + 7):
        server.put(pod(f"pod-{index}", f"10.0.{index // 250}.{index % 250}"))
    async with following(server, credentials) as (found, _):
        await found.until(lambda: found.urls == there(server))
    assert found.told == 1, "never a part of the list"
    assert ["continue" in asked for asked in server.requests[:3]] == [False, True, True]


async def test_a_cut_at_every_byte_loses_nothing(credentials: Path) -> None:
    """Cuts within the list and within the events of a watch."""
    server = ApiServer()
    server.put(pod("a", "10.0.0.1"))
    whole = len(json.dumps(pod("a"))) + 400
    server.cuts = range(0, 2 * whole, 7)
    step = 0
    async with following(server, credentials) as (found, _):
        while next(iter([*server.cuts][:1]), None) is not None:
            step += 1
            server.put(pod(f"b-{step % 3}", f"10.0.1.{step % 250}"))
            if step % 5 == 0:
                server.remove(f"b-{step % 3}")
            await found.until(lambda: found.urls == there(server))


async def test_a_thousand_random_cuts_leave_no_endpoint_lost_or_phantom(credentials: Path) -> None:
    random, server = Random(46), ApiServer()
    asked = 1000
    server.cuts = [random.randrange(1, 12_000) for _ in range(asked)]
    async with following(server, credentials) as (found, _):
        async with asyncio.timeout(120):
            while len(server.requests) < asked + 1:
                name = f"pod-{random.randrange(8)}"
                if name in server.objects and random.random() < 0.4:
                    server.remove(name)
                else:
                    address = f"10.0.{random.randrange(9)}.{random.randrange(250)}"
                    server.put(pod(name, address))
                if random.random() < 0.05:
                    server.forget()
                if random.random() < 0.1:
                    server.pass_by()
                if random.random() < 0.1:
                    server.cut_all()
                await asyncio.sleep(random.random() * 0.004)
        await found.until(lambda: found.urls == there(server))
    assert len([each for each in server.requests if "watch" in each]) > asked / 3


async def test_410_brings_the_list_again(credentials: Path) -> None:
    server = ApiServer()
    server.put(pod("a"))
    async with following(server, credentials) as (found, _):
        await found.until(lambda: found.urls)
        server.remove("a")
        server.put(pod("b"))
        server.forget()
        server.cut_all()
        await found.until(lambda: set(found.urls) == {"b"})


async def test_bookmarks_spare_the_list(credentials: Path) -> None:
    server = ApiServer()
    server.put(pod("a"))
    async with following(server, credentials) as (found, discovery):
        await found.until(lambda: found.urls)
        server.pass_by()
        server.put(pod("b"))
        server.pass_by()
        told = discovery._watch.ask
        await found.until(lambda: told().parameters["resourceVersion"] == "5")
        server.cut_all()
        await found.until(lambda: len(server.requests) == 3)
        assert server.requests[-1]["resourceVersion"] == "5"


async def test_who_cannot_reach_it_goes_on_and_says_so(
    credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = ApiServer()
    server.put(pod("a"))
    async with following(server, credentials) as (found, discovery):
        await found.until(lambda: found.urls)
        assert (discovery.problem, discovery.unheard_s) == ("", 0.0)
        server.statuses = [500] * 12
        with caplog.at_level(logging.INFO):
            server.cut_all()
            await found.until(lambda: discovery.problem)
            assert discovery.unheard_s > 0
            assert set(found.urls) == {"a"}
            server.remove("a")
            server.put(pod("b"))
            await found.until(lambda: set(found.urls) == {"b"})
        assert discovery.problem == ""
    said = [each.message for each in caplog.records if each.name.endswith("discovery")]
    assert len([each for each in said if "cannot be heard" in each]) == 1
    assert "heard again" in said[-1]


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"no json",
        b"[]",
        b"{}",
        b'{"items": [{}], "metadata": {"resourceVersion": "9"}}',
        b'{"type": "ADDED", "object": {"metadata": {"name": "x"}}}\n',
        b'{"type": "ADDED", "object": 5}\n',
        b'{"type": "ERROR", "object": {"code": 500}}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
    ],
)
async def test_a_wrong_answer_changes_nothing(credentials: Path, wrong: bytes) -> None:
    server = ApiServer()
    server.put(pod("a"))
    async with following(server, credentials) as (found, _):
        await found.until(lambda: found.urls)
        server.answers = [wrong] * 8
        server.cut_all()
        await found.until(lambda: not server.answers)
        assert set(found.urls) == {"a"}
        server.put(pod("b"))
        await found.until(lambda: set(found.urls) == {"a", "b"})


async def test_a_server_that_says_nothing_is_left(
    credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is half-open: the server should have ended the watch by then."""
    monkeypatch.setattr(discovering, "WATCH_S", 0.05)
    monkeypatch.setattr(discovering, "_SILENT_S", 0.05)
    server = ApiServer()
    server.put(pod("a"))
    async with following(server, credentials) as (found, _):
        await found.until(lambda: len(server.requests) > 4)
        server.put(pod("b"))
        await found.until(lambda: set(found.urls) == {"a", "b"})


async def test_what_no_event_told_comes_with_the_next_list(credentials: Path) -> None:
    server = ApiServer()
    server.put(pod("a"))
    server.longest_watch_s = 0.02
    async with following(server, credentials, resync_s=0.1) as (found, _):
        await found.until(lambda: found.urls)
        server.objects["silent"] = pod("silent", "10.0.0.5")
        server.objects["silent"]["metadata"]["resourceVersion"] = "1"
        server.pass_by()
        await found.until(lambda: set(found.urls) == {"a", "silent"})


async def test_a_new_token_is_read(credentials: Path) -> None:
    """Kubelets replace it each hour."""
    api = KubernetesApi("https://127.0.0.1:1", credentials)
    (credentials / "token").write_text("second\n")
    assert api.headers() == {"authorization": "Bearer second"}
    await api.close()
