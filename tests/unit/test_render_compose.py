"""Compose files are derived from the cluster file; those in the repository are up to date."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretell import __version__
from foretell.config import load_cluster
from foretell.config.cluster import cluster_schema, parse_cluster
from foretell.tools.render.compose import render

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("cluster", "folder"),
    [
        ("cluster.yaml", "."),
        ("deploy/cluster.emulated.yaml", "deploy"),
        ("deploy/cluster.checkpoint.yaml", "deploy"),
        ("deploy/cluster.envoy.yaml", "deploy"),
        ("deploy/cluster.provisioned.yaml", "deploy"),
    ],
)
def test_shipped_files_are_current(cluster: str, folder: str) -> None:
    file, output = ROOT / cluster, ROOT / folder
    files = render(load_cluster(file), file, output, ROOT)
    assert files
    for name, content in files.items():
        assert (output / name).read_text() == content, "run: make compose"


def test_the_shipped_schema_is_current() -> None:
    shipped = (ROOT / "foretell" / "config" / "cluster.schema.json").read_text()
    assert shipped == cluster_schema(), "run: make compose"
    engines = json.loads(shipped)["properties"]["engines"]
    assert [option["type"] for option in engines["anyOf"]] == ["integer", "array"]


def test_every_field_of_the_schema_is_described_in_a_sentence() -> None:
    schema = json.loads(cluster_schema())
    sections = [schema, *schema["$defs"].values()]
    assert len(sections) > 8
    for section in sections:
        for name, field in section["properties"].items():
            described = field if "$ref" not in field else schema["$defs"][field["$ref"][8:]]
            assert described["description"].endswith("."), (section.get("title"), name)


def rendered(tmp_path: Path, text: str) -> dict[str, dict[str, Any]]:
    """The files for a cluster file, by name."""
    cluster = parse_cluster(text, "cluster.yaml", tmp_path)
    files = render(cluster, tmp_path / "cluster.yaml", tmp_path, ROOT)
    return {name: yaml.safe_load(content) for name, content in files.items()}


def gpus(service: dict[str, Any]) -> list[str]:
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    found: list[str] = device["device_ids"]
    return found


def test_eight_gpus_on_one_host_are_one_line(tmp_path: Path) -> None:
    found = rendered(tmp_path, "models: {org/model: {}}\nengines: 8\n")
    services = found["docker-compose.yml"]["services"]
    engines = [name for name in services if name.startswith("engine-") and "pred" not in name]
    assert engines == [f"engine-{i}" for i in range(8)]
    assert [gpus(services[name]) for name in engines] == [[str(i)] for i in range(8)]
    scheduler = services["scheduler-1"]
    assert scheduler["depends_on"] == ["tagger", *(f"{name}-predictor" for name in engines)]
    instances = json.loads(scheduler["environment"]["FORETELL_SCHEDULER_INSTANCES"])
    for instance, name in zip(instances, engines, strict=True):
        assert instance["instance_id"] == name
        predictor = services[f"{name}-predictor"]["environment"]
        assert instance["predictor"] == predictor["FORETELL_PREDICTOR_LISTEN"]
        published = services[name]["environment"]["FORETELL_PLUGIN_SNAPSHOT_ENDPOINT"]
        assert published == predictor["FORETELL_PREDICTOR_SNAPSHOT_ENDPOINT"]
    assert not any("ports" in service for name, service in services.items() if "sched" not in name)


def test_engines_and_predictors_have_names_so_that_none_is_scaled(tmp_path: Path) -> None:
    (file,) = rendered(tmp_path, "models: {m: {}}\nengines: 2\n").values()
    named = {name: service.get("container_name") for name, service in file["services"].items()}
    assert {name for name, own in named.items() if own == f"${{COMPOSE_PROJECT_NAME}}-{name}"} == {
        *("engine-0", "engine-1", "engine-0-predictor", "engine-1-predictor")
    }


def test_each_image_is_built_once(tmp_path: Path) -> None:
    text = "models: {m: {path: org/m}}\nengines: [{engines: 2}, {kind: emulated, engines: 2}]\n"
    services = rendered(tmp_path, text)["docker-compose.yml"]["services"].values()
    built = [service["image"] for service in services if "build" in service]
    assert sorted(built) == sorted({service["image"] for service in services})
    assert all(service["pull_policy"] == "${PULL_POLICY:-never}" for service in services)


def test_one_image_serves_all_and_has_the_release_for_its_tag(tmp_path: Path) -> None:
    text = "engines: [{kind: emulated, engines: 2}]\nbatches: {folder: kept}\n"
    services = rendered(tmp_path, text)["docker-compose.yml"]["services"]
    images = {service["image"] for service in services.values()}
    assert images == {f"${{FORETELL_IMAGE:-foretell}}:${{FORETELL_VERSION:-{__version__}}}"}
    assert {service["command"][-1] for service in services.values()} == {
        f"foretell.services.{name}"
        for name in ("scheduler", "tagger", "predictor", "backend.emulator", "batch")
    }


def test_what_few_need_is_in_an_image_of_another_tag(tmp_path: Path) -> None:
    text = "engines: [{kind: emulated}]\nbatches: {folder: kept, database_url: postgresql://db/b}\n"
    services = rendered(tmp_path, text)["docker-compose.yml"]["services"]
    (image,) = {service["image"] for service in services.values()}
    assert image.endswith(f"{__version__}}}-storage")
    (build,) = [service["build"] for service in services.values() if "build" in service]
    assert build["args"]["MORE"] == "storage"


def test_without_a_checkout_images_are_named_and_every_file_is_there(tmp_path: Path) -> None:
    text = "models: {m: {path: org/m}}\nengines: 1\nobservability: {prometheus_port: 9090}\n"
    cluster = parse_cluster(text, "cluster.yaml", tmp_path)
    files = render(cluster, tmp_path / "cluster.yaml", tmp_path, tmp_path / "no-checkout")
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    services = yaml.safe_load(files["docker-compose.yml"])["services"]
    assert not [name for name, service in services.items() if "build" in service]
    mounted = [v.split(":")[0] for s in services.values() for v in s["volumes"] if v[0] == "."]
    assert len(mounted) == 4
    assert all((tmp_path / path).exists() for path in mounted)
    shipped = ROOT / "deploy" / "observability" / "rules.yml"
    assert (tmp_path / "deploy/observability/rules.yml").read_text() == shipped.read_text()


TWO_HOSTS = """
models: {m: {path: org/m}}
engines:
  - {host: 10.0.0.1, engines: 2}
  - {host: 10.0.0.2, gpus: 2}
observability: {prometheus_port: 9090}
"""


def test_two_hosts_get_a_file_each_and_prove_who_they_are(tmp_path: Path) -> None:
    found = rendered(tmp_path, TWO_HOSTS)
    first = found["docker-compose.10.0.0.1.yml"]["services"]
    second = found["docker-compose.10.0.0.2.yml"]["services"]
    assert set(second) == {"engine-2", "engine-2-predictor"}
    assert {"scheduler-0", "scheduler-1", "tagger", "prometheus"} < set(first)

    environment = first["scheduler-0"]["environment"]
    addresses = [
        (instance["url"], instance["predictor"])
        for instance in json.loads(environment["FORETELL_SCHEDULER_INSTANCES"])
    ]
    assert addresses == [
        ("http://engine-0:8000", "engine-0-predictor:50051"),
        ("http://engine-1:8000", "engine-1-predictor:50051"),
        ("http://10.0.0.2:8100", "10.0.0.2:8200"),
    ]
    assert second["engine-2"]["ports"] == ["${INSIDE_BIND:-10.0.0.2}:8100:8000"]
    assert gpus(second["engine-2"]) == ["0", "1"]
    assert "--tensor-parallel-size=2" in second["engine-2"]["command"]

    for service in (first["scheduler-0"], first["tagger"], second["engine-2-predictor"]):
        assert "secret_file" in [each["source"] for each in service["secrets"]]
    for host in ("10.0.0.1", "10.0.0.2"):
        secrets = found[f"docker-compose.{host}.yml"]["secrets"]
        assert secrets["secret_file"]["file"].startswith("${SECRET_FILE:?")
        assert secrets["engine_api_key_file"]["file"].startswith("${ENGINE_API_KEY_FILE:?")
    key = "/etc/foretell/engine_api_key_file"
    assert second["engine-2"]["environment"]["VLLM_API_KEY_FILE"] == key


def test_a_host_of_a_name_is_found_and_bound_to_its_address(tmp_path: Path) -> None:
    text = TWO_HOSTS.replace("10.0.0.1", "gpu-a").replace("10.0.0.2", "gpu-b")
    unknown = rendered(tmp_path, text)["docker-compose.gpu-b.yml"]["services"]["engine-2"]
    assert unknown["ports"] == ["${INSIDE_BIND:-0.0.0.0}:8100:8000"]
    found = rendered(tmp_path, f"{text}addresses: {{gpu-a: 10.0.0.1, gpu-b: 'fd00::2'}}\n")
    scheduler = found["docker-compose.gpu-a.yml"]["services"]["scheduler-0"]
    assert scheduler["extra_hosts"] == ["gpu-a=10.0.0.1", "gpu-b=fd00::2"]
    engine = found["docker-compose.gpu-b.yml"]["services"]["engine-2"]
    assert engine["ports"] == ["${INSIDE_BIND:-[fd00::2]}:8100:8000"]


def test_no_secret_is_a_variable_of_a_container(tmp_path: Path) -> None:
    text = "models: {m: {}}\nengines: 1\nprovisioning: {enabled: true}\n"
    found = rendered(tmp_path, text)["docker-compose.yml"]
    for service in found["services"].values():
        for name in service["environment"]:
            assert not name.endswith(("_KEY", "_KEYS", "_SECRET", "_TOKEN")), name
    keys = found["services"]["scheduler-0"]["environment"]["FORETELL_SCHEDULER_API_KEYS_FILE"]
    assert "${API_KEYS:+" in keys  # setting the former variable is not ignored


def published(ports: dict[int, int]) -> list[str]:
    return [f"${{INSIDE_BIND:-10.0.0.2}}:{outside}:{inside}" for outside, inside in ports.items()]


def test_prometheus_reaches_what_it_scrapes_on_every_host(tmp_path: Path) -> None:
    found = rendered(tmp_path, f"{TWO_HOSTS}\ntagger: {{host: 10.0.0.2}}\n")
    scraped = found["prometheus.yml"]["scrape_configs"]
    targets = {
        job["job_name"]: [each["targets"][0] for each in job["static_configs"]] for job in scraped
    }
    engines = [each["labels"]["instance_id"] for each in scraped[-1]["static_configs"]]
    assert engines == ["engine-0", "engine-1", "engine-2"]
    assert targets["scheduler"] == ["scheduler-0:8000", "scheduler-1:8000"]
    assert targets["engine"] == ["engine-0:8000", "engine-1:8000", "10.0.0.2:8100"]
    near = ["engine-0-predictor:9100", "engine-1-predictor:9100"]
    assert targets["predictor"] == [*near, "10.0.0.2:10200"]
    assert targets["tagger"] == ["10.0.0.2:10300"]
    far = found["docker-compose.10.0.0.2.yml"]["services"]
    assert far["engine-2-predictor"]["ports"] == published({8200: 50051, 9200: 51051, 10200: 9100})
    assert far["tagger"]["ports"] == published({8300: 50051, 10300: 9100})
    front = found["docker-compose.10.0.0.1.yml"]["services"]
    assert not any("9100" in port for each in front.values() for port in each.get("ports", []))
    unwatched = rendered(tmp_path, TWO_HOSTS.replace("{prometheus_port: 9090}", "{}"))
    far = unwatched["docker-compose.10.0.0.2.yml"]["services"]
    assert far["engine-2-predictor"]["ports"] == published({8200: 50051, 9200: 51051})


def test_files_are_mounted_where_the_services_look_for_them(tmp_path: Path) -> None:
    text = f"""{TWO_HOSTS}
schedulers: {{api_keys_file: secrets/keys}}
tagger: {{checkpoint: /srv/checkpoint}}
traffic: {{secret_file: secrets/shared}}
"""
    file = rendered(tmp_path, text)["docker-compose.10.0.0.1.yml"]
    services, secrets = file["services"], file["secrets"]
    scheduler, tagger = services["scheduler-0"], services["tagger"]
    assert "api_keys_file" in [each["source"] for each in scheduler["secrets"]]
    assert secrets["api_keys_file"]["file"] == "${API_KEYS_FILE:-./secrets/keys}"
    assert secrets["secret_file"]["file"] == "${SECRET_FILE:-./secrets/shared}"
    assert not any("/etc/foretell/" in mount for mount in scheduler["volumes"])
    keys = scheduler["environment"]["FORETELL_SCHEDULER_API_KEYS_FILE"]
    assert keys.startswith("/etc/foretell/api_keys_file")
    assert any(mount.endswith(":/etc/foretell/checkpoint:ro") for mount in tagger["volumes"])
    assert scheduler["build"]["args"]["MORE"] == "tagger-hf"


def test_what_compose_would_take_for_a_variable_is_escaped(tmp_path: Path) -> None:
    text = "models: {m: {path: org/m, args: --chat-template '$x'}}\nengines: 1\n"
    services = rendered(tmp_path, text)["docker-compose.yml"]["services"]
    assert "--chat-template '$$x'" in services["engine-0"]["command"]


def test_behind_an_envoy_nothing_else_is_published() -> None:
    file = ROOT / "deploy" / "cluster.envoy.yaml"
    files = render(load_cluster(file), file, ROOT / "deploy", ROOT)
    (compose, (path, config)) = files["docker-compose.envoy.yml"], files.popitem()
    services = yaml.safe_load(compose)["services"]
    assert [name for name, service in services.items() if "ports" in service] == ["envoy"]
    envoy = services["envoy"]
    assert (envoy["read_only"], envoy["cap_drop"]) == (True, ["ALL"])
    mounted = next(volume for volume in envoy["volumes"] if "envoy.yaml" in volume)
    assert mounted == f"./{path}:/etc/foretell/envoy.yaml:ro"
    assert "/etc/foretell/envoy.yaml" in envoy["command"]
    addresses = [
        services[name]["environment"]["FORETELL_SCHEDULER_PICKER"]
        for name in ("scheduler-0", "scheduler-1")
    ]
    assert all(address.removeprefix("unix:") in config for address in addresses)


def test_a_batch_service_keeps_its_files_in_a_volume(tmp_path: Path) -> None:
    text = "engines: [{kind: emulated}]\nbatches: {folder: kept}\ntargets: {ttft_target_ms: 300}\n"
    content = rendered(tmp_path, text)["docker-compose.yml"]
    service = content["services"]["batch"]
    environment = service["environment"]
    assert f"batches:{environment['FORETELL_BATCH_FOLDER']}" in service["volumes"]
    assert "batches" in content["volumes"]
    assert environment["FORETELL_BATCH_SCHEDULERS"] == (
        "http://scheduler-0:8000,http://scheduler-1:8000"
    )
    assert float(environment["FORETELL_BATCH_TTFT_TARGET_MS"]) == 300
    scheduler = content["services"]["scheduler-0"]["environment"]
    assert scheduler["FORETELL_SCHEDULER_BATCHES"] == environment["FORETELL_BATCH_LISTEN"]


def test_who_starts_engines_gets_the_docker_socket_only_on_request(tmp_path: Path) -> None:
    text = "models: {m: {}}\nengines: 1\nprovisioning: {enabled: true, maximum: 3}\n"
    text += "observability: {prometheus_port: 9090}\n"
    found = rendered(tmp_path, text)
    services = found["docker-compose.yml"]["services"]
    engines = [f"engine-{i}" for i in range(3)]
    assert [gpus(services[name]) for name in engines] == [["0"], ["1"], ["2"]]
    made = [name for name, service in services.items() if service.get("profiles") == ["engines"]]
    assert made == [each for name in engines for each in (name, f"{name}-predictor")]
    socket = "${DOCKER_SOCKET:-/var/run/docker.sock}:/var/run/docker.sock"
    assert [name for name, each in services.items() if socket in each["volumes"]] == ["provisioner"]
    provisioner = services["provisioner"]
    assert provisioner["profiles"] == ["provisioner"]
    assert "ports" not in provisioner
    environment = provisioner["environment"]
    assert environment["FORETELL_PROVISIONER_DRIVER"] == "docker"
    assert environment["FORETELL_PROVISIONER_DRIVER_TARGET"] == "${COMPOSE_PROJECT_NAME}"
    assert environment["FORETELL_PROVISIONER_SCHEDULERS"] == (
        "http://scheduler-0:8000,http://scheduler-1:8000"
    )
    places = json.loads(environment["FORETELL_PROVISIONER_INSTANCES"])
    assert [place["instance_id"] for place in places] == engines
    folder = environment["FORETELL_PROVISIONER_FOLDER"]
    for name in ("scheduler-0", "scheduler-1"):
        listed = services[name]["environment"]["FORETELL_SCHEDULER_INSTANCES"]
        assert listed == f"{folder}/instances.json"
        assert services[name]["depends_on"].keys() == {"tagger", "provisioner"}
        assert not services[name]["depends_on"]["provisioner"]["required"]
    jobs = {job["job_name"] for job in found["prometheus.yml"]["scrape_configs"]}
    assert "provisioner" in jobs


def test_only_tls_is_published_to_others_where_there_is_tls(tmp_path: Path) -> None:
    text = (
        "engines: [{kind: emulated}]\nschedulers: {listen: 0.0.0.0, https_port: 9443, "
        "https_certificate: tls/cert.pem, https_key: tls/key.pem}\n"
    )
    services = rendered(tmp_path, text)["docker-compose.yml"]["services"]
    for index in (0, 1):
        scheduler = services[f"scheduler-{index}"]
        assert scheduler["ports"] == [
            f"127.0.0.1:${{SCHEDULER_{index}_PORT:-{8000 + index}}}:8000",
            f"${{BIND:-0.0.0.0}}:${{SCHEDULER_{index}_HTTPS_PORT:-{9443 + index}}}:8443",
        ]
        assert scheduler["environment"]["FORETELL_SCHEDULER_HTTPS_LISTEN"] == "0.0.0.0:8443"
        assert {"source": "https_key", "target": "/etc/foretell/https_key"} in scheduler["secrets"]
