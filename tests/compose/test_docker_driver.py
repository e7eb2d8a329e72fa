"""The Docker driver on a real Docker engine, with idle containers."""

import asyncio
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest
from projects import SOCKET, find_docker

from foretell.services.provisioner.docker import DockerDriver
from foretell.services.provisioner.driver import DriverFailed

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

IMAGE = os.environ.get("BASE_IMAGE", "python:3.11-slim-bookworm")


class Project:
    """Containers with Compose's labels."""

    def __init__(self) -> None:
        self.docker = find_docker()
        self.name = f"foretell-test-{uuid.uuid4().hex[:8]}"

    def run(self, *args: str) -> str:
        done = subprocess.run(
            [self.docker, *args], capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout.strip()

    def create(self, service: str) -> str:
        labels = {"project": self.name, "service": service, "oneoff": "False"}
        flags = [f"--label=com.docker.compose.{key}={value}" for key, value in labels.items()]
        name = f"{self.name}-{service}-1"
        self.run("create", "--init", f"--name={name}", *flags, IMAGE, "sleep", "3600")
        return name

    def running(self) -> set[str]:
        label = f"label=com.docker.compose.project={self.name}"
        return set(self.run("ps", "--filter", label, "--format", "{{.Names}}").split())


@pytest.fixture
def project() -> Iterator[Project]:
    project = Project()
    yield project
    label = f"label=com.docker.compose.project={project.name}"
    made = project.run("ps", "--all", "--quiet", "--filter", label).split()
    if made:
        project.run("rm", "--force", *made)


async def test_containers_are_started_and_stopped_whatever_was_cut_short(project: Project) -> None:
    names = ["engine-0", "engine-1"]
    first = {project.create("engine-0"), project.create("engine-0-predictor")}
    project.create("engine-1")
    driver = DockerDriver(project.name, names, socket=str(SOCKET))
    try:
        assert await driver.find() == {}
        with pytest.raises(DriverFailed, match="engine-1-predictor has no container"):
            await driver.start("engine-1")
        await driver.end("engine-1")
        await asyncio.gather(driver.start("engine-0"), driver.start("engine-0"))
        assert await driver.find() == {"engine-0": True}
        assert project.running() == first

        project.run("kill", f"{project.name}-engine-0-predictor-1")
        assert await driver.find() == {"engine-0": False}
        await driver.start("engine-0")
        assert project.running() == first

        with suppress(TimeoutError):  # the caller leaves before the answer
            async with asyncio.timeout(0.01):
                await driver.end("engine-0")
        await driver.end("engine-0")
        assert (await driver.find(), project.running()) == ({}, set())
    finally:
        await driver.close()
