"""Runs contract tests on the event loop of the services: some faults show only there."""

import asyncio
from collections.abc import Callable

from foretell.services.process import runtime


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"service": runtime.loop_factory() or asyncio.new_event_loop}
