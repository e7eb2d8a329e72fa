"""What does it cost to upload, validate and accept a batch of 50,000 lines of 4 kB?

The file comes over HTTP by way of a scheduler, as a client would send it. No engine runs: nothing
but the intake of the batch is measured.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from bench.processes import OthersClock, Service, Services, running_services
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table

__all__ = ["BENCH", "arguments", "measure", "tables"]
BENCH = Benchmark(
    __file__,
    __doc__,
    takes="a minute",
    needs="Linux",
    packages=("foretell", "aiohttp", "sqlalchemy"),
)
_MODEL = "m"
_URL = "/v1/chat/completions"
_START_S, _END_S = 120.0, 600.0
_PIECE_LINES = 64


def _line(number: int, length_bytes: int) -> bytes:
    """A line of a batch of so many bytes, its end included."""
    body = {"model": _MODEL, "messages": [{"role": "user", "content": ""}]}
    line = {"custom_id": f"c{number}", "method": "POST", "url": _URL, "body": body}
    empty = len(json.dumps(line)) + 1
    body["messages"] = [{"role": "user", "content": "x" * (length_bytes - empty)}]
    return json.dumps(line).encode() + b"\n"


async def _file(lines: int, length_bytes: int) -> AsyncIterator[bytes]:
    """The file, a piece at a time: the client needs no memory for it."""
    for first in range(0, lines, _PIECE_LINES):
        numbers = range(first, min(lines, first + _PIECE_LINES))
        yield b"".join(_line(number, length_bytes) for number in numbers)


def _peak_mb(service: Service) -> float:
    """The most resident memory that a process has had, in millions of bytes."""
    status = Path(f"/proc/{service.process.pid}/status").read_text(encoding="utf-8")
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kib) * 1024 / 1e6


async def _services(services: Services) -> dict[str, Service]:
    address = f"unix:{services.folder}/batch.sock"
    scheduler = await services.start(
        "scheduler",
        "foretell.services.scheduler",
        f"--instances={json.dumps({'instances': [], 'models': [_MODEL]})}",
        f"--batches={address}",
        start_timeout_s=_START_S,
    )
    batch = await services.start(
        "batch",
        "foretell.services.batch",
        f"--folder={services.folder / 'batches'}",
        f"--listen={address}",
        f"--schedulers={scheduler.facts['url']}",
        start_timeout_s=_START_S,
    )
    return {"scheduler": scheduler, "batch service": batch}


async def _accept(url: str, options: argparse.Namespace) -> dict[str, float]:
    """Upload and create, and wait until the batch is validated; seconds of each step."""
    timeout = aiohttp.ClientTimeout(total=_END_S)
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        began_s = time.monotonic()
        with aiohttp.MultipartWriter("form-data") as form:
            form.append("batch").set_content_disposition("form-data", name="purpose")
            part = form.append(_file(options.lines, options.bytes))
            part.set_content_disposition("form-data", name="file", filename="in.jsonl")
            async with session.post("/v1/files", data=form) as answer:
                file = await answer.json()
                assert answer.status == 200, file
        uploaded_s = time.monotonic()
        asked = {"input_file_id": file["id"], "endpoint": _URL, "completion_window": "24h"}
        async with session.post("/v1/batches", json=asked) as answer:
            batch: dict[str, Any] = await answer.json()
        while batch["status"] == "validating":
            await asyncio.sleep(0.02)
            async with session.get(f"/v1/batches/{batch['id']}") as answer:
                batch = await answer.json()
        assert batch["status"] == "in_progress", batch
        assert batch["request_counts"]["total"] == options.lines
    accepted_s = time.monotonic()
    return {"upload_s": uploaded_s - began_s, "validation_s": accepted_s - uploaded_s}


async def _run(options: argparse.Namespace) -> Numbers:
    with TemporaryDirectory(prefix="foretell-bench-") as folder:
        async with running_services(Path(folder)) as services:
            running = await _services(services)
            before = {name: service.cpu_s() for name, service in running.items()}
            before_mb = {name: _peak_mb(service) for name, service in running.items()}
            own_s, others = time.process_time(), OthersClock(services.cpu_s)
            took = await _accept(str(running["scheduler"].facts["url"]), options)
            return {
                **took,
                "client_cpu_s": time.process_time() - own_s,
                "others_cores": others.cores(),
                "processes": {
                    name: {
                        "cpu_s": service.cpu_s() - before[name],
                        "before_mb": before_mb[name],
                        "peak_mb": _peak_mb(service),
                    }
                    for name, service in running.items()
                },
            }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=4000, help="Of each line.")


def measure(options: argparse.Namespace) -> Numbers:
    return {"lines": options.lines, "bytes": options.bytes, **asyncio.run(_run(options))}


def tables(page: Numbers) -> Blocks:
    """Time, CPU time and memory."""
    total_s = page["upload_s"] + page["validation_s"]
    text = (
        f"{page['lines']:,} lines of {page['bytes']:,} bytes, chat completions, over HTTP on this "
        f"host by way of a scheduler, SQLite and local files. {total_s:.1f} s from the first byte "
        f"to `in_progress`: {page['upload_s']:.1f} s upload, {page['validation_s']:.1f} s "
        f"validation; other processes kept {page['others_cores']:.1f} cores busy meanwhile. The "
        f"client used {page['client_cpu_s']:.1f} s of CPU time.\n"
    )
    rows = [
        (name, f"{each['cpu_s']:.1f}", f"{each['before_mb']:.0f}", f"{each['peak_mb']:.0f}")
        for name, each in page["processes"].items()
    ]
    table = markdown_table(
        ("process", "CPU time, s", "peak memory before, MB", "and with it"), rows
    )
    return {"tables": "\n".join((made_by(page), text, table))}
