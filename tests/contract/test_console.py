"""The console's page, and who may see its data."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from engines import answer, engines
from schedulers import running

from foretell.services.scheduler import console

FOLDER = Path(console.__file__).parent
NAMES = sorted(p.name for p in FOLDER.iterdir() if p.suffix in (".html", ".css", ".js"))
FILES = ["/console", *[f"/console/{n}" for n in NAMES if not n.endswith(".html")]]


async def test_the_page_is_static_and_lets_nothing_in_from_elsewhere(tmp_path: Path) -> None:
    async with engines(answer) as one, running(tmp_path, one) as scheduler:
        for path in FILES:
            response = await scheduler.client.get(path)
            assert response.status_code == 200
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
        assert (await scheduler.client.get("/console/../app.py")).status_code == 404
        assert (await scheduler.client.post("/console")).status_code == 405


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_inline_and_nothing_comes_from_elsewhere(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not re.search(r"https?://", text.replace("http://www.w3.org/2000/svg", ""))
    assert not re.search(r"<style|style=|onclick|innerHTML|<script(?! type)", text)


async def test_what_it_shows_is_for_admin_keys(tmp_path: Path) -> None:
    keys = {"boss": {"admin": True}, "team": {}}
    for name, fields in keys.items():
        fields["sha256"] = hashlib.sha256(name.encode()).hexdigest()
    file = tmp_path / "keys.yaml"
    file.write_text(json.dumps(keys))
    async with (
        engines(answer) as one,
        running(
            tmp_path, one, api_keys_file=str(file), headers={"authorization": "Bearer boss"}
        ) as scheduler,
    ):
        for key, status in (("team", 403), ("wrong", 401)):
            headers = {"authorization": f"Bearer {key}"}
            answered = await scheduler.client.get(console.STATE, headers=headers)
            assert answered.status_code == status
        assert (await scheduler.complete()).status_code == 200
        answered = await scheduler.client.get(console.STATE)
        state = answered.json()
    assert answered.headers["connection"] == "close"  # the next request may reach another replica
    assert state["requests_total"] == 1
    (instance,) = state["instances"]
    assert instance["lanes"] == []  # no predictor is followed
    assert set(instance["last_minute"]) == {
        *("ttft_s", "predicted_ttft_s", "e2e_s", "predicted_e2e_s")
    }
    (request,) = state["requests"]
    assert request["instance_id"] == instance["instance_id"]
    assert request["met"] is None
    assert state["targets"] == {"given": 0, "met": 0}
