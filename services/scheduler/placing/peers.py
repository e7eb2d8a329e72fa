"""How predictors and the tagger are called, and when they are left alone."""

import time
from collections.abc import Awaitable
from typing import TypeVar

import grpc

T = TypeVar("T")

_GRPC_OPTIONS = [
    # A sidecar that comes back must be noticed within a second, not after gRPC's default 120 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to a predictor or the tagger that notices a restart quickly."""
    return grpc.aio.insecure_channel(address, options=_GRPC_OPTIONS)


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


class Breaker:
    """Spares a peer that fails: after each failure in a row it is left alone twice as long."""

    FIRST_S, LONGEST_S = 0.1, 5.0

    def __init__(self) -> None:
        self._failures = 0
        self._retry_at = 0.0

    @property
    def open(self) -> bool:
        return time.monotonic() < self._retry_at

    def failed(self) -> None:
        pause = min(self.LONGEST_S, self.FIRST_S * 2 ** min(self._failures, 10))
        self._failures += 1
        self._retry_at = time.monotonic() + pause

    def succeeded(self) -> None:
        self._failures = 0
        self._retry_at = 0.0
