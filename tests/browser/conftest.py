"""A loaded cluster that requires keys, and its console in Debian's chromium."""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright import sync_api

from tests.e2e.cluster import Cluster, cluster

CHROMIUM = os.environ.get("FORETELL_CHROMIUM") or shutil.which("chromium")
ADMIN = "boss"
"""The key that may see the console."""
WAIT_MS = 240_000
PROMPT = "Write a long story about a lighthouse, with many details. Part "
LOAD = {"authorization": "Bearer team", "x-slo-ttft-ms": "60000"}
STREAMS = 6
EXPECTED = ("status of 401", "status of 404")
"""Expected errors: 401 before a key is given, and 404 of a replica that does not know a request."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two replicas under constant load."""
    folder = tmp_path_factory.mktemp("up")
    keys = {ADMIN: {"admin": True}, "team": {}}
    for name, fields in keys.items():
        fields["sha256"] = hashlib.sha256(name.encode()).hexdigest()
    (folder / "keys.yaml").write_text(json.dumps(keys))
    flags = ("--engines=3", "--schedulers=2")
    variables = {"FORETELL_SCHEDULER_API_KEYS_FILE": str(folder / "keys.yaml")}
    with cluster(folder, *flags, start_s=WAIT_MS / 1000, **variables) as running:
        ended = threading.Event()
        threads = [
            threading.Thread(target=_ask, args=(running, number, ended))
            for number in range(STREAMS)
        ]
        for thread in threads:
            thread.start()
        yield running
        ended.set()
        for thread in threads:
            thread.join()


def _ask(running: Cluster, number: int, ended: threading.Event) -> None:
    """Request one stream after the other, each over a new connection and so to any replica."""
    no_reuse = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(
        base_url=running.endpoint, headers=LOAD, timeout=WAIT_MS / 1000, limits=no_reuse
    ) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        message = {"role": "user", "content": f"{PROMPT}{number}"}
        body = {"model": model, "messages": [message], "max_tokens": 60, "stream": True}
        while not ended.is_set():
            client.post("/v1/chat/completions", json=body)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # Chromium has no sandbox as root, and a container's /dev/shm is too small.
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield found
        found.close()


@pytest.fixture(params=[(1200, "light"), (390, "dark")], ids=["desktop", "phone"])
def page(loaded: Cluster, browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The console, opened with the key. At the end it must have raised no error and asked no other
    server, and must not be wider than the screen."""
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(WAIT_MS)
    problems: list[str] = []
    asked: set[str] = set()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("request", lambda sent: asked.add(sent.url))
    page.goto(f"{loaded.endpoint}/console")
    key = page.get_by_label("Admin key")
    key.fill(ADMIN)
    key.press("Enter")
    key.wait_for(state="hidden")
    page.locator(".lane").first.wait_for()
    page.locator("#scatter circle").first.wait_for()
    yield page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()
    assert not [each for each in problems if not any(text in each for text in EXPECTED)]
    assert all(url.startswith(loaded.endpoint) for url in asked)
