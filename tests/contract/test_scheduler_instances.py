"""Instances come and go while the scheduler runs."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from engines import MODEL, WHOLE, Engine, Exchange, answer, engines, gated
from schedulers import instances_json, running, until
from scripted_peers import Predictor, serving

from foretell.config import SchedulerSettings
from foretell.services.scheduler.__main__ import serve


class InstancesFile:
    """A file written as operators' tools do: in place or by a rename, always with a new mtime."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writes = 0

    def write(self, text: str) -> None:
        self._writes += 1
        partial = self.path.with_suffix(".part")
        partial.write_text(text)
        os.utime(partial, (self._writes, self._writes))
        partial.replace(self.path)


@pytest.fixture
def file(tmp_path: Path) -> InstancesFile:
    return InstancesFile(tmp_path / "instances.json")


async def test_instances_are_added_and_removed(tmp_path: Path, file: InstancesFile) -> None:
    async with engines(answer, answer) as (first, second):
        file.write(instances_json([first]))
        async with running(tmp_path, instances=str(file.path)) as scheduler:
            await scheduler.until(lambda s: s["instances"][0]["healthy"])
            await scheduler.complete()
            file.write(instances_json([first, second]))
            await scheduler.until(lambda s: [i["healthy"] for i in s["instances"]] == [True, True])
            # The engine that stayed in the list has kept its state.
            assert (await scheduler.instance("engine-0"))["dispatched_total"] == 1
            used = {(await scheduler.complete()).headers["x-foretell-instance"] for _ in range(2)}
            assert used == {"engine-0", "engine-1"}
            file.write(instances_json([second]))
            await scheduler.until(lambda s: len(s["instances"]) == 1)
            assert (await scheduler.metric("foretell_instance_healthy")) == 1
            assert 'foretell_instance_healthy{engine="vllm",instance_id="engine-0"' not in (
                await scheduler.metrics()
            )
            for _ in range(3):
                response = await scheduler.complete()
                assert response.headers["x-foretell-instance"] == "engine-1"
            probes = first.probes
            seen = second.probes
            await until(lambda: second.probes >= seen + 3)
            assert first.probes <= probes + 1  # one probe may have been in progress


BROKEN = {
    "no JSON": "[{",
    "no list": "{}",
    "a number as id": '[{"instance_id": 5, "url": "http://x"}]',
    "a number as url": '[{"instance_id": "a", "url": 5}]',
    "a number as predictor": '[{"instance_id": "a", "url": "http://x", "predictor": 5}]',
    "no URL": '[{"instance_id": "a", "url": "http://x:port"}]',
    "nested": "[" * 100_000,
    "not UTF-8": "\udcff",
}


async def test_a_broken_file_keeps_the_old_list(
    tmp_path: Path, file: InstancesFile, caplog: pytest.LogCaptureFixture
) -> None:
    async with engines(answer, answer) as (first, second):
        file.write(instances_json([first]))
        async with running(tmp_path, instances=str(file.path)) as scheduler:
            await scheduler.until(lambda s: s["instances"][0]["healthy"])
            for reason, text in BROKEN.items():
                caplog.clear()
                if reason == "not UTF-8":
                    file.path.write_bytes(b"\xff\xfe\xfd")
                else:
                    file.write(text)
                await until(lambda: "not taken in" in caplog.text)
                probes = first.probes
                await until(lambda n=probes: first.probes >= n + 2)  # type: ignore[misc]
                assert (await scheduler.complete()).content == WHOLE, reason
            caplog.clear()
            file.path.unlink()
            await until(lambda: "not taken in" in caplog.text)
            probes = first.probes
            await until(lambda: first.probes >= probes + 5)
            assert caplog.text.count("not taken in") == 1  # logged once, not at every probe
            file.write(instances_json([first, second]))
            await scheduler.until(lambda s: len(s["instances"]) == 2)


async def test_a_request_outlives_the_removal_of_its_instance(
    tmp_path: Path, file: InstancesFile
) -> None:
    gate = asyncio.Event()
    sidecar = Predictor()
    async with (
        engines(gated(gate), answer) as (first, second),
        serving(sidecar) as address,
    ):
        file.write(instances_json([first], [address]))
        async with running(tmp_path, instances=str(file.path)) as scheduler:
            await scheduler.until(lambda s: s["instances"][0]["healthy"])
            work = asyncio.create_task(scheduler.complete())
            await until(lambda: len(first.received) == 1)
            file.write(instances_json([second]))
            await scheduler.until(
                lambda s: [i["instance_id"] for i in s["instances"]] == ["engine-1"]
            )
            gate.set()
            assert (await work).content == WHOLE
            await until(lambda: len(sidecar.ended) == 1)  # its reservation is released nevertheless
            await scheduler.until_metric("foretell_e2e_seconds_count", 1, instance_id="engine-0")


async def test_an_instance_whose_url_changes_is_looked_at_anew(
    tmp_path: Path, file: InstancesFile
) -> None:
    async with engines(answer, answer) as (first, second):
        file.write(instances_json([first]))
        async with running(tmp_path, instances=str(file.path)) as scheduler:
            await scheduler.until(lambda s: s["instances"][0]["healthy"])
            second.instance_id = first.instance_id
            file.write(instances_json([second]))
            await scheduler.until(
                lambda s: s["instances"][0]["url"] == second.url and s["instances"][0]["healthy"]
            )
            assert (await scheduler.complete()).content == WHOLE
            assert (len(first.received), len(second.received)) == (0, 1)


@pytest.mark.parametrize(
    "models",
    [
        [],
        {"data": None},
        {"data": 5},
        {"data": ["a"]},
        {"data": [{}]},
        {"data": [None]},
        "text",
        json.loads("[" * 200 + "]" * 200),
    ],
)
async def test_an_engine_that_lies_about_its_models_stops_no_probing(
    tmp_path: Path, models: object
) -> None:
    async with engines(answer, answer) as (liar, good):
        liar.models = models
        async with running(tmp_path, [liar, good], all_up=False) as scheduler:
            await scheduler.until(lambda s: s["instances"][1]["healthy"])
            await until(lambda: liar.probes >= 3)
            for _ in range(2):
                assert (await scheduler.complete()).content == WHOLE
            assert liar.received == []
            liar.models = good.models
            await scheduler.until(lambda s: s["instances"][0]["healthy"])


async def test_a_health_answer_that_never_ends_counts_as_none(tmp_path: Path) -> None:
    """Each byte comes in time but the answer never ends, so a timeout per read would not help."""

    class Dripping(Engine):
        async def _respond(self, method: str, exchange: Exchange) -> None:
            if exchange.received.path != "/health" or not self.dripping:
                await super()._respond(method, exchange)
                return
            await exchange.head(200, "text/plain")
            while True:
                await exchange.chunk(b".")
                await asyncio.sleep(0.01)

        dripping = False

    engine = Dripping("engine-0")
    await engine.start()
    async with running(tmp_path, [engine], health_timeout_s=0.1) as scheduler:
        engine.dripping = True
        await scheduler.until(lambda s: not s["instances"][0]["healthy"])
    await engine.stop()


async def test_health_is_shown_for_what_the_engine_turned_out_to_be(tmp_path: Path) -> None:
    async with engines(answer) as (engine,):
        engine.models = {"data": [{"id": "m", "owned_by": "foretell-emulated"}]}
        engine.health_status = 500
        async with running(tmp_path, [engine], all_up=False) as scheduler:
            await until(lambda: engine.probes >= 2)
            assert await scheduler.metric("foretell_instance_healthy") == 0
            engine.health_status = 200
            await scheduler.until_metric("foretell_instance_healthy", 1, engine="emulated")
            text = await scheduler.metrics()
            assert text.count("foretell_instance_healthy{") == 1  # no stale series remains at 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"instances": "[{"}, "instances: not valid JSON"),
        ({"instances": '[{"instance_id": "a"}]'}, "instances: 0.url: Field required"),
        ({"instances": "/nonexistent/file"}, "cannot read"),
        ({"tokenizer": "/nonexistent"}, "does not exist"),
    ],
)
async def test_wrong_settings_end_the_start_with_a_sentence(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        await serve(SchedulerSettings(**settings), asyncio.Event())


async def test_what_drains_ends_what_it_has_and_gets_nothing_new(
    tmp_path: Path, file: InstancesFile
) -> None:
    gate = asyncio.Event()
    async with engines(gated(gate), answer) as (first, second):
        file.write(instances_json([first]))
        async with running(tmp_path, instances=str(file.path)) as scheduler:
            await scheduler.until(lambda s: s["instances"][0]["healthy"])
            begun = asyncio.create_task(scheduler.complete())
            await until(lambda: len(first.received) == 1)
            draining = [first.config() | {"draining": True}, second.config()]
            file.write(json.dumps(draining))
            await scheduler.until(lambda s: [i["healthy"] for i in s["instances"]] == [True, True])
            used = {(await scheduler.complete()).headers["x-foretell-instance"] for _ in range(3)}
            assert used == {"engine-1"}
            found = await scheduler.instance("engine-0")
            assert (found["draining"], found["outstanding"]) == (True, 1)
            file.write(instances_json([first]))  # listed again, it keeps its request
            await scheduler.until(lambda s: [i["draining"] for i in s["instances"]] == [False])
            gated_too = asyncio.create_task(scheduler.complete())
            await until(lambda: len(first.received) == 2)
            assert (await scheduler.instance("engine-0"))["outstanding"] == 2
            file.write(json.dumps(draining))
            await scheduler.until(lambda s: len(s["instances"]) == 2)
            assert (await scheduler.instance("engine-0"))["outstanding"] == 2
            gate.set()
            assert (await gated_too).status_code == 200
            assert (await begun).status_code == 200
            await scheduler.until_idle()
        # A replica that starts meanwhile sends it nothing, either.
        async with running(tmp_path, instances=str(file.path)) as scheduler:
            await scheduler.until(lambda s: [i["healthy"] for i in s["instances"]] == [True, True])
            await scheduler.complete()
            assert (await scheduler.instance("engine-0"))["dispatched_total"] == 0


async def test_from_zero_the_first_request_waits_and_is_answered(
    tmp_path: Path, file: InstancesFile
) -> None:
    async with engines(answer) as (engine,):
        nobody = {"instances": [], "models": [MODEL]}
        file.write(json.dumps(nobody))
        async with running(tmp_path, instances=str(file.path), engine_wait_s=60.0) as scheduler:
            assert (await scheduler.client.get("/ready")).status_code == 200
            (card,) = (await scheduler.client.get("/v1/models")).json()["data"]
            assert card["id"] == MODEL
            unknown = await scheduler.client.post("/v1/completions", json={"model": "other"})
            assert unknown.status_code in (400, 404)
            first = asyncio.create_task(scheduler.complete())
            await scheduler.until(lambda s: s["demand"]["held"] == 1)
            file.write(json.dumps(nobody | {"instances": [engine.config()]}))
            assert (await first).status_code == 200
            demand = (await scheduler.status())["demand"]
            assert (demand["arrived_total"], demand["held"]) == (1, 0)
            assert demand["worst_e2e_s"] > 0
            assert len(demand["lengths"]) == 1


async def test_a_model_whose_engine_has_not_been_up_yet_waits_for_it(tmp_path: Path) -> None:
    """A cluster file names the model of an engine that is still loading its weights."""
    async with engines(answer, answer) as (first, late):
        late.models = {"data": [{"id": "other"}]}
        late.health_status = 503
        listed = json.dumps([first.config(), late.config() | {"model": "other"}])
        async with running(tmp_path, instances=listed, engine_wait_s=0.05) as scheduler:
            await scheduler.until(lambda s: s["instances"][0]["healthy"])
            cards = (await scheduler.client.get("/v1/models")).json()["data"]
            assert {card["id"] for card in cards} == {MODEL, "other"}
            refused = await scheduler.complete(model="other")
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "no_instance"
            assert int(refused.headers["retry-after"]) > 0
            assert (await scheduler.complete(model="nobody's")).status_code == 404
        async with running(tmp_path, instances=listed, engine_wait_s=60.0) as scheduler:
            await scheduler.until(lambda s: s["instances"][0]["healthy"])
            waiting = asyncio.create_task(scheduler.complete(model="other"))
            await scheduler.until(lambda s: s["demand"]["held"] == 1)
            late.health_status = 200
            assert (await waiting).headers["x-foretell-instance"] == late.instance_id
            late.models = {"data": [{"id": "renamed"}]}  # now the engine's own answer counts
        async with running(tmp_path, instances=listed) as scheduler:
            await scheduler.until(lambda s: all(i["healthy"] for i in s["instances"]))
            assert (await scheduler.complete(model="other")).status_code == 404
            assert (await scheduler.complete(model="renamed")).status_code == 200
