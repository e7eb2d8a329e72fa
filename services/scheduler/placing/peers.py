"""How predictors and the tagger are called."""

from collections.abc import Awaitable
from typing import TypeVar

import grpc

from foretell.services.process import calls
from foretell.services.process.traffic import OPEN, Traffic

T = TypeVar("T")

_GRPC_OPTIONS = [
    # A sidecar that comes back must be noticed within a second, not after gRPC's default 120 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


def open_channel(address: str, traffic: Traffic = OPEN) -> grpc.aio.Channel:
    """A channel to a predictor or the tagger that notices a restart quickly."""
    return calls.channel(traffic, address, _GRPC_OPTIONS)


class NoAnswer(Exception):
    """The peer failed, was late, or sent what cannot be decoded."""


async def answer_of(call: Awaitable[T]) -> T:
    """The message that `call` brings; raises `NoAnswer`."""
    try:
        message = await call
    except grpc.aio.AioRpcError as error:
        raise NoAnswer(f"{error.code().name}: {error.details()}") from error
    # What does not decode, grpc only logs, and hands on None (`_transform` in grpc/_common.py).
    if message is None:
        raise NoAnswer("the message cannot be decoded")
    return message
