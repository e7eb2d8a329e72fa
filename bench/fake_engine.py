"""The compiled fake engine: OpenAI's API without a model."""

import asyncio
import subprocess
from pathlib import Path

from bench.report import ROOT
from foretell.services.process.children import Child

SOURCE = ROOT / "bench" / "gateway" / "engine.c"
MODEL = "fake"


def compiled(source: Path, folder: Path) -> Path:
    """Compile one C file into a program in `folder`; raises `subprocess.CalledProcessError`."""
    program = folder / source.stem
    subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)  # noqa: S607
    return program


async def start_fake_engines(
    count: int, tick_ms: int, folder: Path, children: list[Child]
) -> list[str]:
    """Start `count` engines in one process, which is added to `children`; returns their URLs.

    A stream gets its first chunk at once, the others at ticks. Raises `ChildFailed`.
    """
    log = folder / "engine.log"
    command = [str(compiled(SOURCE, folder)), str(count), str(1000 * tick_ms)]
    children.append(await Child.spawn("engine", command, log))
    while not (ports := log.read_text().split()):
        if children[-1].exit_code is not None:
            raise children[-1].failure("ended")
        await asyncio.sleep(0.01)
    return [f"http://127.0.0.1:{port}" for port in ports]
