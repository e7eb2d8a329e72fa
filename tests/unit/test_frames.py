"""Streams of frames."""

import asyncio
from pathlib import Path

from foretell.services.process import runtime
from foretell.services.process.frames import FrameStream, open_frames, serve_frames
from foretell.services.process.traffic import OPEN

WAIT_S = 20.0


class _End(FrameStream):
    def __init__(self) -> None:
        super().__init__()
        self.frame = asyncio.get_running_loop().create_future()

    def received(self, payload: bytes) -> None:
        self.frame.set_result(payload)


class _Echo(FrameStream):
    def received(self, payload: bytes) -> None:
        self.send(payload)


def test_frames_travel_on_the_loop_that_services_run_on(tmp_path: Path) -> None:
    async def there_and_back() -> bytes:
        address = f"unix:{tmp_path}/frames.sock"
        server, _ = await serve_frames(_Echo, address, OPEN)
        stream = await open_frames(_End, address, OPEN)
        assert isinstance(stream, _End)
        stream.send(b"x" * 100_000)
        payload: bytes = await asyncio.wait_for(stream.frame, WAIT_S)
        stream.close()
        server.close()
        return payload

    with asyncio.Runner(loop_factory=runtime.loop_factory()) as runner:
        assert runner.run(there_and_back()) == b"x" * 100_000
