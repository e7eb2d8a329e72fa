"""The emulated cluster in containers, as a user starts it: build, serve, lose an engine, go on."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from projects import API_KEY, ENGINES, SCHEDULERS, SERVICES, Cluster, ask, started, wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(950)]


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with started(request, "deploy/docker-compose.emulated.yml") as cluster:
        for scheduler in SCHEDULERS:
            ready = f"{cluster.url(scheduler)}/ready"
            wait_until(lambda url=ready: httpx.get(url).is_success, f"{scheduler} is ready")  # type: ignore[misc]
        wait_until(lambda: cluster.healthy("engine-0"), "engine-0 is healthy")
        wait_until(lambda: cluster.healthy("engine-1"), "engine-1 is healthy")
        yield cluster


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_published_scheduler_answers(cluster: Cluster, scheduler: str) -> None:
    client = cluster.client(scheduler)

    whole = ask(client, max_tokens=8, extra_body={"ignore_eos": True})
    assert whole.headers["x-foretell-instance"] in {"engine-0", "engine-1"}
    assert whole.headers["x-foretell-emulated"] == "true"
    assert whole.parse().usage.completion_tokens == 8

    streamed = ask(client, max_tokens=8, stream=True, extra_body={"ignore_eos": True})
    assert streamed.headers["x-foretell-instance"] in {"engine-0", "engine-1"}
    chunks = list(streamed.parse())
    assert chunks[-1].choices[0].finish_reason == "length"
    assert sum(bool(chunk.choices[0].delta.content) for chunk in chunks) == 8


def test_placements_are_predicted_over_the_shared_sockets(cluster: Cluster) -> None:
    for engine in ENGINES:
        predictor = f"{engine}-predictor"
        wait_until(
            lambda name=predictor: cluster.snapshots_heard(name) > 0,  # type: ignore[misc]
            f"{predictor} hears its engine",
        )
    headers = ask(cluster.client("scheduler-0"), max_tokens=4).headers
    assert float(headers["x-foretell-predicted-ttft-s"]) > 0


def test_a_key_is_asked_for(cluster: Cluster) -> None:
    answer = httpx.post(f"{cluster.url('scheduler-0')}/v1/chat/completions", json={})
    assert answer.status_code == 401
    assert API_KEY not in json.dumps(cluster.inspect("scheduler-0")["Config"])


def test_containers_are_confined(cluster: Cluster) -> None:
    assert set(cluster.compose("ps", "--services").split()) == SERVICES
    published: dict[str, list[str]] = {}
    for service in SERVICES:
        facts = cluster.inspect(service)
        assert cluster.compose("exec", "-T", service, "id", "-u").strip() == "10001", service
        assert facts["HostConfig"]["ReadonlyRootfs"], service
        assert facts["HostConfig"]["CapDrop"] == ["ALL"], service
        assert "no-new-privileges:true" in facts["HostConfig"]["SecurityOpt"], service
        bounds = ("Memory", "NanoCpus", "PidsLimit")
        assert all(facts["HostConfig"][bound] > 0 for bound in bounds), service
        bound = [b for ports in facts["NetworkSettings"]["Ports"].values() for b in ports or []]
        published[service] = [binding["HostIp"] for binding in bound]
    expected = {name: ["127.0.0.1"] if name in SCHEDULERS else [] for name in SERVICES}
    assert published == expected


def test_nothing_is_kept_but_in_volumes_with_names(cluster: Cluster) -> None:
    """An anonymous volume would outlive an upgrade, with an older release's content."""
    for service in SERVICES:
        facts = cluster.inspect(service)
        kept = {mount["Destination"] for mount in facts["Mounts"] if mount["Type"] == "volume"}
        assert kept == {"/run/foretell"}
        assert not facts["Config"]["Volumes"]


def test_no_second_engine_gets_the_identity_of_one(cluster: Cluster) -> None:
    with pytest.raises(AssertionError, match="unique name"):
        cluster.compose("up", "--no-build", "--detach", "--scale", "engine-0=2")
    assert len(cluster.compose("ps", "--all", "--quiet", "engine-0").split()) == 1


def test_a_killed_engine_is_survived_and_comes_back(cluster: Cluster) -> None:
    first = ask(cluster.client("scheduler-0"), max_tokens=4)
    victim = first.headers["x-foretell-instance"]

    cluster.compose("kill", victim)

    for scheduler in SCHEDULERS * 2:
        answer = ask(cluster.client(scheduler), max_tokens=4)
        assert answer.headers["x-foretell-instance"] != victim
    assert cluster.inspect(victim)["State"]["Status"] == "exited"

    predictor = f"{victim}-predictor"
    heard_before = cluster.snapshots_heard(predictor)
    cluster.compose("start", victim)
    wait_until(lambda: cluster.healthy(victim), f"{victim} is healthy again")
    wait_until(
        lambda: cluster.snapshots_heard(predictor) > heard_before, f"{predictor} hears it again"
    )


def test_prometheus_beside_it_hears_every_process(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile `observability` with Debian's Prometheus: no registry can be reached here."""
    program = os.environ.get("FORETELL_PROMETHEUS") or shutil.which("prometheus")
    if not program:
        pytest.skip("no program prometheus")
    shutil.copy(program, tmp_path / "prometheus")
    start = 'COPY prometheus /usr/local/bin/\nENTRYPOINT ["/usr/local/bin/prometheus"]\n'
    (tmp_path / "Dockerfile").write_text(f"FROM python:3.11-slim-bookworm\n{start}")
    image = f"{cluster.project}-prometheus"
    build = [cluster.docker, "build", "--quiet", "--tag", image, str(tmp_path)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    monkeypatch.setenv("PROMETHEUS_IMAGE", image)
    try:
        profile = ("--profile", "observability")
        cluster.compose(*profile, "up", "--detach", "--no-build", "--no-deps", "prometheus")
        url = f"http://{cluster.compose(*profile, 'port', 'prometheus', '9090').strip()}"

        def heard() -> dict[str, float]:
            try:
                query = {"query": "sum by (job) (up)"}
                answer = httpx.get(f"{url}/api/v1/query", params=query, timeout=10)
                found = answer.raise_for_status().json()["data"]["result"]
            except httpx.HTTPError:
                return {}
            return {each["metric"]["job"]: float(each["value"][1]) for each in found}

        expected = {"scheduler": 2.0, "predictor": 2.0, "tagger": 1.0, "engine": 2.0}
        wait_until(lambda: heard() == expected, "every target is scraped", 90.0)
    finally:
        cluster.compose("--profile", "observability", "rm", "--stop", "--force", "prometheus")
        remove = [cluster.docker, "image", "rm", "--force", image]
        subprocess.run(remove, check=False, capture_output=True, timeout=60)
