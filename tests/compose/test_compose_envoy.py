"""The emulated cluster behind an Envoy in containers: build, serve, lose an engine, go on."""

import httpx
import pytest
from projects import ENGINES, SERVICES, ask, started, wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(950)]


def test_behind_an_envoy_requests_are_placed_and_answered(
    request: pytest.FixtureRequest,
) -> None:
    with started(request, "deploy/docker-compose.envoy.yml") as cluster:
        ready = f"{cluster.url('envoy')}/ready"
        wait_until(lambda: httpx.get(ready).is_success, "a scheduler answers behind Envoy")
        client = cluster.client("envoy")
        streamed = ask(client, max_tokens=8, stream=True, extra_body={"ignore_eos": True})
        assert streamed.headers["x-foretell-instance"] in set(ENGINES)
        chunks = list(streamed.parse())
        assert sum(bool(chunk.choices[0].delta.content) for chunk in chunks) == 8

        url = f"{cluster.url('envoy')}/v1/chat/completions"
        assert httpx.post(url, json={}).status_code == 401
        victim = streamed.headers["x-foretell-instance"]
        cluster.compose("kill", victim)
        for _ in range(4):
            answer = ask(client, max_tokens=4)
            assert answer.headers["x-foretell-instance"] != victim
        assert set(cluster.compose("ps", "--services").split()) == {*SERVICES, "envoy"} - {victim}
        assert cluster.compose("exec", "-T", "envoy", "id", "-u").strip() == "10001"
