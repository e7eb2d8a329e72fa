"""Processes started by hand with one cluster file find each other through that file alone."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from foretell.services.process.folders import free_ports
from tests.processes import processes_with, read_facts, wait_until


@contextmanager
def process(
    folder: Path, module: str, name: str, *flags: str, **environment: str
) -> Iterator[Path]:
    """`python -m module --cluster FILE --name NAME`; yields its ready file."""
    ready = folder / f"{name}.{module}.ready"
    command = [sys.executable, "-m", module, f"--cluster={folder / 'cluster.yaml'}", *flags]
    command += [f"--name={name}"] if name != "tagger" else []
    with (
        (folder / f"{name}.{module}.log").open("wb") as log,
        subprocess.Popen(
            [*command, f"--ready-file={ready}"], stderr=log, env={**os.environ, **environment}
        ) as child,
    ):
        try:
            yield ready
        finally:
            child.terminate()
            child.wait(30)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a short path: a socket's path is limited to some 100 bytes."""
    path = tmp_path_factory.mktemp("run")
    yield path
    assert processes_with(str(path)) == []


def write(folder: Path, engines: list[dict[str, Any]], **sections: Any) -> None:
    content = {"engines": engines, "schedulers": {"port": 0}, "run_dir": "run", **sections}
    (folder / "cluster.yaml").write_text(json.dumps(content))


async def answer(url: str) -> httpx.Response:
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 4}
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        return await client.post(f"{url}/v1/completions", json=body)


async def test_three_processes_need_the_engines_name_once(folder: Path) -> None:
    port = free_ports("127.0.0.1", 1)[0]
    section = {"name": "only", "kind": "emulated", "port": port, "args": "--speedup 20"}
    write(folder, [section], models={"tiny": {}}, policy={"name": "round_robin"})
    with (
        process(folder, "foretell.services.tagger", "tagger") as tagger,
        process(folder, "foretell.services.backend", "only") as engine,
        process(folder, "foretell.services.scheduler", "scheduler-0") as scheduler,
    ):
        for ready in (tagger, engine, scheduler):
            await wait_until(ready.exists)
        url = read_facts(scheduler)["url"]
        await wait_until(lambda: httpx.get(f"{url}/ready").is_success)
        found = await answer(url)
        assert found.headers["x-foretell-instance"] == "only"
        assert found.headers["x-foretell-policy"] == "round_robin"
        assert read_facts(tagger)["address"] == f"unix:{folder / 'run' / 'tagger.sock'}"
        assert read_facts(engine)["predictor"] == f"unix:{folder / 'run' / 'only.predictor.sock'}"
        assert read_facts(scheduler)["replica_id"] == "scheduler-0"


async def test_engine_sidecar_and_scheduler_apart_and_the_environment_wins(folder: Path) -> None:
    first, second = free_ports("127.0.0.1", 2)
    alike = {"kind": "emulated", "args": "--speedup 20"}
    engines = [{"port": first, **alike}]
    write(folder, engines, models={"tiny": {}}, policy={"name": "round_robin"})
    with ExitStack() as stack:

        def begin(module: str, name: str, **environment: str) -> Path:
            return stack.enter_context(process(folder, module, name, **environment))

        ready = [
            begin("foretell.services.backend.emulator", "engine-0"),
            begin("foretell.services.predictor", "engine-0"),
            begin(
                "foretell.services.scheduler",
                "scheduler-0",
                FORETELL_SCHEDULER_POLICY="least_outstanding",
            ),
        ]
        for file in ready:
            await wait_until(file.exists)
        url = read_facts(ready[-1])["url"]
        await wait_until(lambda: httpx.get(f"{url}/ready").is_success)
        assert (await answer(url)).headers["x-foretell-policy"] == "least_outstanding"

        write(folder, [*engines, {"port": second, **alike}], models={"tiny": {}})
        begin("foretell.services.backend.emulator", "engine-1")

        def healthy() -> set[str]:
            instances = httpx.get(f"{url}/status").json()["instances"]
            return {i["instance_id"] for i in instances if i["healthy"]}

        await wait_until(lambda: healthy() == {"engine-0", "engine-1"})


def test_a_wrong_file_ends_a_process_with_line_and_field(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("engines:\n- kind: emulated\n  engins: 2\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "foretell.services.scheduler",
            f"--cluster={tmp_path / 'cluster.yaml'}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cluster.yaml, line 3, column 3: engines[0].engins: is not known here" in done.stderr
    assert "Traceback" not in done.stderr
