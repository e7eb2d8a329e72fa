"""A scheduler with an endpoint picker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from engines import Engine
from schedulers import Scheduler, running

from foretell.v1 import ext_proc_pb2 as pb

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
PROMPT = b'{"model": "test-model", "prompt": "hello"}'


@asynccontextmanager
async def picker(
    folder: Path, behind: list[Engine], **changes: object
) -> AsyncIterator[tuple[Scheduler, grpc.aio.Channel]]:
    """A scheduler, and a channel to its picker."""
    address = f"unix:{folder}/picker.sock"
    async with (
        running(folder, behind, picker=address, **changes) as scheduler,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield scheduler, channel


def process(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall:
    return channel.stream_stream(
        PROCESS,
        request_serializer=pb.ProcessingRequest.SerializeToString,
        response_deserializer=pb.ProcessingResponse.FromString,
    )()
