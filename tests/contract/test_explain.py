"""Explanations of placements: what a replica tells, to whom, and how the command shows them."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from engines import answer, close_before_headers, engines
from schedulers import Scheduler, running
from scripted_peers import Predictor, serving
from typer.testing import CliRunner

from foretell.cli.main import app
from foretell.tools.view.replicas import addresses_of

ID = {"x-request-id": "mine-1"}


async def explained(scheduler: Scheduler, request_id: str = "mine-1") -> dict:
    """The explanation of a request once it has ended."""
    async with asyncio.timeout(20):
        while True:
            response = await scheduler.client.get(f"/explain/{request_id}")
            assert response.status_code == 200, response.text
            if (told := response.json())["attempts"][-1]["happened"] is not None:
                return told


async def shown(*arguments: str) -> tuple[int, str]:
    """Exit code and output of `foretell explain`, run in a thread beside the scheduler."""
    result = await asyncio.to_thread(
        CliRunner().invoke, app, ["explain", *arguments], env={"COLUMNS": "80"}
    )
    return result.exit_code, result.output + str(result.exception or "")


async def test_each_attempt_is_told_with_its_candidates_and_what_happened(tmp_path: Path) -> None:
    async with (
        engines(close_before_headers, answer) as two,
        serving(Predictor(e2e_s=2.0)) as soon,
        serving(Predictor(e2e_s=4.0)) as late,
        running(tmp_path, two, [soon, late], policy="predicted_latency") as scheduler,
    ):
        assert (await scheduler.complete(headers=ID)).status_code == 200
        told = await explained(scheduler)
        code, text = await shown("mine-1", "--url", scheduler.url)
    first, second = told["attempts"]
    assert (told["request_id"], told["model_name"]) == ("mine-1", "test-model")
    assert first["because"] == (
        "engine-0 is the best by predicted end-to-end latency, in seconds: 2 against 4 of engine-1"
    )
    candidates = sorted(first["candidates"], key=lambda each: str(each["instance_id"]))
    assert [c["score"] for c in candidates] == [2.0, 4.0]
    assert [c["predicted"]["ttft_s"] for c in candidates] == [0.2, 0.4]
    assert [c["chosen"] for c in candidates] == [True, False]
    assert first["happened"]["finished"] is False
    assert (second["instance_id"], second["because"]) == (
        "engine-1",
        "engine-1 was the only candidate",
    )
    happened = second["happened"]
    assert (happened["finished"], happened["status"], happened["output_tokens"]) == (True, 200, 20)
    assert happened["e2e_s"] > 0
    assert code == 0, text
    flat = " ".join(text.split())
    assert "Attempt 1 went to engine-0: engine-0 is the best by" in flat
    assert "20 tokens" in flat
    assert "\u2026" not in text, "80 columns are enough"


async def test_only_an_admin_key_sees_what_becomes_of_requests(tmp_path: Path) -> None:
    keys = {"boss": {"admin": True}, "team": {}}
    for name, fields in keys.items():
        fields["sha256"] = hashlib.sha256(name.encode()).hexdigest()
    file = tmp_path / "keys.yaml"
    file.write_text(json.dumps(keys))
    async with (
        engines(answer) as (engine,),
        running(
            tmp_path, [engine], api_keys_file=str(file), headers={"x-api-key": "team"}
        ) as scheduler,
    ):
        await scheduler.complete(headers=ID)
        refused = await scheduler.client.get("/explain/mine-1")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_needed")
        nobody = await scheduler.client.get("/explain/mine-1", headers={"x-api-key": "wrong"})
        assert nobody.status_code == 401
        boss = {"x-api-key": "boss"}
        assert (await scheduler.client.get("/explain/mine-1", headers=boss)).status_code == 200
        unknown = await scheduler.client.get("/explain/other", headers=boss)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (
            404,
            "request_not_remembered",
        )
        for key, message in (
            ("", "wants a key: give one with --api-key"),
            ("team", "this needs a key that is named with 'admin: true'"),
        ):
            code, text = await shown("mine-1", "--url", scheduler.url, "--api-key", key)
            assert code == 1
            assert message in " ".join(text.split())
        code, text = await shown("mine-1", "--url", scheduler.url, "--api-key", "boss")
        assert (code, "engine-0 was the only" in text) == (0, True)


async def test_keys_without_names_are_no_admins(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        running(tmp_path, [engine], api_keys="one,two", headers={"x-api-key": "one"}) as scheduler,
    ):
        await scheduler.complete(headers=ID)
        assert (await scheduler.client.get("/explain/mine-1")).status_code == 403


async def test_the_command_asks_all_replicas_and_says_who_does_not_know(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    async with (
        engines(answer) as (engine,),
        running(tmp_path / "one", [engine], name="one") as one,
        running(tmp_path / "other", [engine], name="other") as other,
    ):
        await other.complete(headers=ID)
        await explained(other)
        urls = ("--url", one.url, "--url", other.url, "--url", "http://127.0.0.1:1")
        code, text = await shown("mine-1", *urls, "--json")
        assert (code, json.loads(text)["replica_id"]) == (0, "other")
        code, text = await shown("mine-2", *urls)
        assert code == 1
        assert "no replica remembers 'mine-2' (one, other asked)" in " ".join(text.split())
    code, text = await shown("mine-1", *urls)
    assert code == 1
    assert "no scheduler answers at" in text


@pytest.mark.parametrize(
    ("listen", "near"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]")],
)
def test_a_cluster_file_has_the_addresses(tmp_path: Path, listen: str, near: str) -> None:
    file = tmp_path / "cluster.yaml"
    schedulers = {"replicas": 2, "port": 9000, "listen": listen}
    file.write_text(json.dumps({"engines": [{"kind": "emulated"}], "schedulers": schedulers}))
    assert addresses_of(str(file)) == [f"http://{near}:9000", f"http://{near}:9001"]
