"""What does a message between a predictor and a scheduler cost, by gRPC, ZMQ or plain frames?

Both ends run in one process, so that its CPU is that of a message's whole way. Notices are small,
pictures are large; each is sent when the one before has arrived.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import zmq
import zmq.asyncio

from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.services.process import runtime
from foretell.services.process.frames import FrameStream, open_frames, serve_frames
from foretell.services.process.traffic import OPEN
from foretell.tools.progress import progress

BENCH = Benchmark(
    __file__, __doc__, takes="a minute", packages=("foretell", "grpcio", "pyzmq", "uvloop")
)
SIZES = {"notice": 300, "picture": 12_000}
"""Bytes; a picture of 48 running and 50 waiting requests has as many."""
ROUNDS = 5

Send = Callable[[bytes], Awaitable[None]]
"""Sends one message and returns when the other end has it."""
Way = Callable[[Path], AsyncIterator[Send]]


async def unary(folder: Path) -> AsyncIterator[Send]:
    """A call by gRPC for each message."""

    async def answer(_: bytes, __: Any) -> bytes:
        return b""

    server = grpc.aio.server()
    handlers = {"Call": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Bench", handlers),))
    server.add_insecure_port(f"unix:{folder}/unary")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{folder}/unary") as channel:
        call: Any = channel.unary_unary("/Bench/Call")  # type: ignore[call-arg]

        async def send(message: bytes) -> None:
            await call(message)

        yield send
    await server.stop(None)


async def stream(folder: Path) -> AsyncIterator[Send]:
    """A stream by gRPC."""
    heard = asyncio.Queue[int]()

    async def answer(messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for message in messages:
            heard.put_nowait(len(message))
        yield b""

    server = grpc.aio.server()
    handlers = {"Call": grpc.stream_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Bench", handlers),))
    server.add_insecure_port(f"unix:{folder}/stream")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{folder}/stream") as channel:
        call: Any = channel.stream_stream("/Bench/Call")()  # type: ignore[call-arg]

        async def send(message: bytes) -> None:
            await call.write(message)
            await heard.get()

        yield send
        call.cancel()
    await server.stop(None)


async def zeromq(folder: Path) -> AsyncIterator[Send]:
    """A pair of ZMQ sockets."""
    context = zmq.asyncio.Context()
    here, there = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    there.bind(f"ipc://{folder}/zmq")
    here.connect(f"ipc://{folder}/zmq")

    async def send(message: bytes) -> None:
        await here.send(message)
        await there.recv()

    yield send
    here.close()
    there.close()
    context.term()


class _End(FrameStream):
    heard: asyncio.Queue[int]

    def received(self, payload: bytes) -> None:
        self.heard.put_nowait(len(payload))


async def frames(folder: Path) -> AsyncIterator[Send]:
    """Frames, as foretell.services.process.frames has them."""
    _End.heard = asyncio.Queue[int]()
    server, _ = await serve_frames(_End, f"unix:{folder}/frames", OPEN)
    end = await open_frames(_End, f"unix:{folder}/frames", OPEN)

    async def send(message: bytes) -> None:
        end.send(message)
        await _End.heard.get()

    yield send
    end.close()
    server.close()


WAYS: dict[str, Way] = {
    "gRPC, a call each": unary,
    "gRPC, a stream": stream,
    "ZMQ": zeromq,
    "frames": frames,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's own options."""
    parser.add_argument("--messages", type=int, default=2000, help="Messages of each round.")


def measure(options: argparse.Namespace) -> Numbers:
    """CPU microseconds a message, the median over the rounds, in which the ways take turns."""
    with asyncio.Runner(loop_factory=runtime.loop_factory()) as runner:
        return runner.run(_measure(options.messages))


async def _measure(messages: int) -> Numbers:
    seen: dict[str, dict[str, list[float]]] = {way: {s: [] for s in SIZES} for way in WAYS}
    with progress() as bar:
        for _ in bar.track(range(ROUNDS), description="rounds"):
            for way, opened in WAYS.items():
                for size, count in SIZES.items():
                    seen[way][size].append(await _cpu_us(opened, bytes(count), messages))
    found = {w: {s: round(median(v), 1) for s, v in sizes.items()} for w, sizes in seen.items()}
    return {"messages": messages, "ways": found}


async def _cpu_us(opened: Way, message: bytes, messages: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        async for send in opened(Path(folder)):
            await send(message)
            began_s = time.process_time()
            for _ in range(messages):
                await send(message)
            took_s = time.process_time() - began_s
    return 1e6 * took_s / messages


def tables(result: Numbers) -> Blocks:
    """One row for each way."""
    ways = result["ways"]
    rows = [
        (way, *(f"{us:.0f} ({us / ways['frames'][s]:.1f})" for s, us in sizes.items()))
        for way, sizes in ways.items()
    ]
    header = ("way", *(f"{size}, {count:,} bytes" for size, count in SIZES.items()))
    text = (
        f"CPU microseconds of both ends for one message, the median of {ROUNDS} rounds of "
        f"{result['messages']:,}; in brackets the ratio to frames. *Laboratory*: one process, one "
        "message at a time, over a unix socket.\n"
    )
    return {"table": "\n".join((made_by(result), text, markdown_table(header, rows)))}


if __name__ == "__main__":
    BENCH.main(measure, tables, arguments)
