"""The console in a real browser, under load, while engines die and restart."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright import sync_api

from tests.browser.conftest import ADMIN, CHROMIUM, WAIT_MS
from tests.e2e.cluster import Cluster

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not CHROMIUM, reason="no program chromium: apt-get install chromium"),
]
ELSEWHERE = "http://127.0.0.1:1"
BEFORE_REQUESTS = ("Skip to the engines", "Table of requests")
"""The elements that Tab reaches before the first request, in order."""
FOCUSED = """() => {
  const focused = document.activeElement;
  const style = getComputedStyle(focused);
  const box = focused.getBoundingClientRect();
  const name = focused.ariaLabel ?? (focused.labels?.[0]?.firstChild ?? focused).textContent;
  return {
    name: name.trim(),
    shown: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    inside: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
  };
}"""
REFUSED = """async (elsewhere) => {
  const refused = new Set();
  const keep = (event) => refused.add(event.effectiveDirective);
  document.addEventListener("securitypolicyviolation", keep);
  const script = document.createElement("script");
  script.textContent = "window.injected = true";
  document.body.append(script);
  document.body.setAttribute("style", "color: red");
  new Image().src = `${elsewhere}/picture`;
  await fetch(elsewhere).catch(() => null);
  while (refused.size < 4) await new Promise(requestAnimationFrame);
  return [[...refused].sort(), window.injected ?? null];
}"""


def test_every_view_shows_the_whole_cluster_while_two_engines_die(
    loaded: Cluster, page: Any
) -> None:
    summary = page.locator("#summary")
    sync_api.expect(summary).to_contain_text("2 replicas", timeout=WAIT_MS)
    sync_api.expect(summary).to_contain_text("policy slo")
    sync_api.expect(page.locator("#targets")).to_contain_text("with targets", timeout=WAIT_MS)
    assert page.locator("article").count() == 3
    _story(page)
    for name in ("engine-0", "engine-1"):
        loaded.kill(name)
        page.locator("article .down").first.wait_for()
        page.locator("article .down").first.wait_for(state="detached")
    assert page.locator("article .up").count() == 3
    _story(page)


def _story(page: Any) -> None:
    """Open and close a request's story with the keyboard alone; the focus must stay on its row."""
    row = page.locator("#requests tr", has_text="answered").first
    row.wait_for()
    name = row.locator("button").inner_text()
    page.get_by_role("button", name=name, exact=True).first.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name=f"Request {name}")
    dialog.locator("td", has_text="ms").first.wait_for()
    assert "ended with status 200" in dialog.inner_text()
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    focused = "document.activeElement.textContent"
    assert page.evaluate(focused) == name
    for _ in range(2):  # a refresh of the rows keeps the focus
        with page.expect_response("**/console/state"):
            pass
    assert page.evaluate(focused) == name


def test_everything_is_reached_and_done_with_the_keyboard(page: Any) -> None:
    page.reload()  # starts again, with the key known
    page.locator("#requests button").first.wait_for()
    for name in BEFORE_REQUESTS:
        page.keyboard.press("Tab")
        assert page.evaluate(FOCUSED) == {"name": name, "shown": True, "inside": True}
    page.keyboard.press("Tab")
    found = page.evaluate(FOCUSED)
    assert found["shown"]
    assert found["inside"]
    page.keyboard.press("Space")
    dialog = page.get_by_role("dialog", name=f"Request {found['name']}")
    dialog.locator("td").first.wait_for()
    close = dialog.get_by_role("button", name="Close")
    while not close.evaluate("each => each === document.activeElement"):
        page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED)["shown"]
    page.keyboard.press("Space")
    dialog.wait_for(state="hidden")
    page.get_by_role("link", name="Skip to the engines").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "engines-title"


def test_axe_finds_no_barrier(page: Any) -> None:
    """Check names, roles, contrast and more in each view, with the rules of axe-core."""
    assert _barriers(page) == []
    page.locator("#requests button").first.click()
    page.locator("#told td").first.wait_for()
    assert _barriers(page) == []


def test_axe_finds_no_barrier_where_a_key_is_asked_for(loaded: Cluster, browser: Any) -> None:
    page = browser.new_page()
    page.goto(f"{loaded.endpoint}/console")
    page.get_by_label("Admin key").fill("wrong")
    page.get_by_role("button", name="Show").click()
    alert = page.get_by_role("alert")
    sync_api.expect(alert).to_contain_text("key", timeout=WAIT_MS)
    assert _barriers(page) == []
    assert ADMIN not in page.content()
    page.close()


def _barriers(page: Any) -> list[tuple[str, list[str]]]:
    """Each violated rule, and the elements that violate it."""
    found = Axe().run(page).response
    assert len(found["passes"]) > 10
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]]


def test_nothing_runs_or_comes_but_what_the_scheduler_serves(loaded: Cluster, browser: Any) -> None:
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{loaded.endpoint}/console")
    refused = ["connect-src", "img-src", "script-src-elem", "style-src-attr"]
    assert page.evaluate(REFUSED, ELSEWHERE) == [refused, None]
    page.close()
