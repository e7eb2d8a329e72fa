"""What does the console cost a scheduler while somebody watches, and while nobody does?

A scheduler, sidecars and the tagger are processes as they are deployed; what the engines publish is
made up, and a fake engine answers. Requests are sent before, so that there is something to show.
"""

import argparse
import asyncio
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.overhead.load.client import send
from bench.overhead.load.cluster import Schedulers, Variant, running_cluster, running_schedulers
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.services.process import runtime
from foretell.services.scheduler.console import STATE
from foretell.tools.harness.cases import Size

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="4 minutes",
    needs="gcc, Linux",
    packages=("foretell", "numpy", "orjson", "uvloop"),
)
ENGINES = 12
VARIANTS = (
    Variant("slo", "8", "slo"),
    Variant("slo-48-50", "48 + 50", "slo", Size(48, 50)),
)
_SENT_PER_S, _SENT_S, _CHUNKS = 40.0, 3.0, 3
WATCHED_PER_S = 1.0
"""Questions of the page."""
HURRIED_PER_S = 10.0
"""Enough for the cost of one to stand out."""
_LONGEST_ANSWER_S = 30.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="Rounds of each.")
    parser.add_argument("--seconds", type=float, default=10.0, help="Seconds of each window.")


def measure(options: argparse.Namespace) -> Numbers:
    """CPU time of a scheduler in windows that take turns."""
    with (
        TemporaryDirectory(prefix="foretell-bench-") as folder,
        asyncio.Runner(loop_factory=runtime.loop_factory()) as runner,
    ):
        found = runner.run(_measure(Path(folder), options.rounds, options.seconds))
    return {"rounds": options.rounds, "seconds": options.seconds, "variants": found}


async def _measure(folder: Path, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    found = {}
    async with running_cluster(folder, ENGINES) as cluster:
        for variant in VARIANTS:
            async with running_schedulers(cluster, variant) as schedulers:
                found[variant.title] = await _windows(schedulers, rounds, seconds)
    return found


async def _windows(schedulers: Schedulers, rounds: int, seconds: float) -> dict[str, float]:
    """Medians over rounds: milliseconds of CPU a second, and of a question; bytes of an answer."""
    (port,) = schedulers.ports
    load = _SENT_PER_S, _SENT_S
    await send([port], *load, seed=0, prompts="console", chunks=_CHUNKS)
    before = await _cpu_ms(schedulers, 0.0, seconds)
    watched, after, each, size = [], [], [], 0
    await _asked(port)  # the first one loads what it needs
    for _ in range(rounds):
        watched.append(await _cpu_ms(schedulers, WATCHED_PER_S, seconds))
        after.append(await _cpu_ms(schedulers, 0.0, seconds))
        hurried = await _cpu_ms(schedulers, HURRIED_PER_S, seconds)
        each.append((hurried - after[-1]) / HURRIED_PER_S)
        size = len(await _asked(port))
    return {
        "before_ms": before,
        "watched_ms": median(watched),
        "after_ms": median(after),
        "question_ms": median(each),
        "answer_bytes": size,
    }


async def _cpu_ms(schedulers: Schedulers, questions_per_s: float, seconds: float) -> float:
    """CPU milliseconds a second of the scheduler, while it is asked at even intervals."""
    loop = asyncio.get_running_loop()
    began_s, began_cpu_s = loop.time(), schedulers.cpu_s()["scheduler"]
    for number in range(round(questions_per_s * seconds)):
        await asyncio.sleep(max(0.0, began_s + number / questions_per_s - loop.time()))
        await _asked(schedulers.ports[0])
    await asyncio.sleep(max(0.0, began_s + seconds - loop.time()))
    took_s = loop.time() - began_s
    return 1e3 * (schedulers.cpu_s()["scheduler"] - began_cpu_s) / took_s


async def _asked(port: int) -> bytes:
    """The state, over a connection of its own as the page asks for it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {STATE} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    async with asyncio.timeout(_LONGEST_ANSWER_S):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 200"), head
    return body


def tables(numbers: Numbers) -> Blocks:
    """A row for each size of the engines."""
    rows = [
        (
            title,
            *(f"{found[name] / 10:.2f}%" for name in ("before_ms", "after_ms", "watched_ms")),
            f"{found['question_ms']:.1f}",
            f"{found['question_ms'] * WATCHED_PER_S / 10:.2f}%",
            f"{found['answer_bytes'] / 1000:.0f}",
        )
        for title, found in numbers["variants"].items()
    ]
    header = (
        *("running + waiting", "before anybody watched", "nobody watches", "one watches"),
        *("ms of a question", "of a core, watched", "kB of an answer"),
    )
    text = "\n".join(
        (
            made_by(numbers),
            f"Laboratory: {ENGINES} engines, what they publish is made up; the first columns are "
            "shares of a core that the scheduler uses without requests, medians over "
            f"{numbers['rounds']} rounds of windows of {numbers['seconds']:g} s that take turns. "
            f"*ms of a question*: CPU time, from windows of {HURRIED_PER_S:g} questions a second; "
            "the page asks once a second.\n",
            markdown_table(header, rows),
        )
    )
    return {"tables": text}
