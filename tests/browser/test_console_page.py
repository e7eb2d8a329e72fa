"""The console in a real browser, under load, while engines die and come back."""

import shutil
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright import sync_api

from tests.e2e.cluster import Cluster, cluster

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
PROMPT = "Write a long story about a lighthouse, with many details. Part "
TARGETS = {"x-slo-ttft-ms": "60000"}
WAIT_MS = 120_000


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two replicas that always has something to do."""
    with cluster(tmp_path_factory.mktemp("up"), "--engines=3", "--schedulers=2") as running:
        ended = threading.Event()
        threads = [threading.Thread(target=_ask, args=(running, n, ended)) for n in range(6)]
        for thread in threads:
            thread.start()
        yield running
        ended.set()
        for thread in threads:
            thread.join()


def _ask(running: Cluster, number: int, ended: threading.Event) -> None:
    """One stream after the other, each over a connection of its own."""
    model = httpx.get(f"{running.endpoint}/v1/models").json()["data"][0]["id"]
    message = {"role": "user", "content": f"{PROMPT}{number}"}
    body = {"model": model, "messages": [message], "max_tokens": 60, "stream": True}
    while not ended.is_set():
        url = f"{running.endpoint}/v1/chat/completions"
        httpx.post(url, json=body, headers=TARGETS, timeout=60)


def _is_problem(said: Any) -> bool:
    """A replica that does not remember a request answers 404, which the browser notes."""
    return said.type == "error" and "404" not in said.text


@pytest.fixture(params=[(1200, "light"), (390, "dark")], ids=["desktop", "phone"])
def page(loaded: Cluster, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The console, opened; at the end it must have raised no error and asked nobody else."""
    width, scheme = request.param
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.set_default_timeout(WAIT_MS)
        problems: list[str] = []
        asked: set[str] = set()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if _is_problem(said) else 0)
        page.on("request", lambda sent: asked.add(sent.url))
        page.goto(f"{loaded.endpoint}/console")
        yield page
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        browser.close()
    assert not problems
    assert all(url.startswith(loaded.endpoint) for url in asked)


def test_every_view_shows_the_whole_cluster_while_two_engines_die(
    loaded: Cluster, page: Any
) -> None:
    page.locator(".lane").first.wait_for()
    page.locator("#scatter circle").first.wait_for()
    summary = page.locator("#summary")
    sync_api.expect(summary).to_contain_text("2 replicas", timeout=WAIT_MS)
    sync_api.expect(summary).to_contain_text("policy slo")
    sync_api.expect(page.locator("#targets")).to_contain_text("with targets", timeout=WAIT_MS)
    assert page.locator("article").count() == 3
    _story(page)
    _what_if(page)
    for name in ("engine-0", "engine-1"):
        loaded.kill(name)
        page.locator("article .down").first.wait_for()
        page.locator("article .down").first.wait_for(state="detached")
    assert page.locator("article .up").count() == 3
    _story(page)


def _story(page: Any) -> None:
    """Open and close a request's story with the keyboard alone; the focus stays where it was."""
    row = page.locator("#requests tr", has_text="answered").first
    row.wait_for()
    button = page.get_by_role("button", name=row.locator("button").inner_text(), exact=True).first
    name = button.inner_text()
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name=f"Request {name}")
    dialog.locator("td", has_text="ms").first.wait_for()
    assert "ended with status 200" in dialog.inner_text()
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    focused = "document.activeElement.textContent"
    assert page.evaluate(focused) == name
    page.wait_for_timeout(1500)  # the rows are refreshed, and the focus is still there
    assert page.evaluate(focused) == name


def _what_if(page: Any) -> None:
    form = page.locator("#what-if")
    form.get_by_label("Engines").select_option("one fewer")
    form.get_by_label("Traffic").select_option("twice")
    form.get_by_role("button", name="Predict").click()
    table = page.locator("#answer table")
    table.wait_for()
    assert table.locator("thead th").last.inner_text() == "with the change"
    assert "s" in table.get_by_role("row", name="TTFT, median").locator("td").last.inner_text()
    goodput = table.get_by_role("row", name="Goodput").locator("td").last.inner_text()
    assert float(goodput) > 0
