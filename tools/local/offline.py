"""The file of `foretell up --offline`: answered beside all other requests, as `run-batch` does."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event

from foretell.tools.batch.run import CannotRun, Halted, answer_file
from foretell.tools.local.state import ClusterState

logger = logging.getLogger(__name__)


def answers_of(source: Path) -> Path:
    """Where the answers to a file go."""
    return source.with_name(f"{source.stem}.answers.jsonl")


async def answer(
    source: Path,
    state: ClusterState,
    say: Callable[[str], None],
    stop: asyncio.Event,
    profile: str = "",
) -> None:
    """Have the file answered until `stop`; a cluster that is started later goes on there.

    `profile`: GPU profile by which requests are ordered, as in `answer_file`. `state` tells of the
    progress, `say` is told what came of it. Whatever goes wrong, the cluster serves on.
    """
    halt = Event()
    answering = asyncio.create_task(asyncio.to_thread(_answered, source, state, halt, profile))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({answering, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    halt.set()
    state.offline = await answering
    say(state.offline)


def _answered(source: Path, state: ClusterState, halt: Event, profile: str) -> str:
    """What came of the file, in words."""
    output = answers_of(source)
    if output.exists():
        return f"{source} is answered already: {output}"
    counts = "nothing"

    def show(pace: str, done: int, total: int) -> None:
        nonlocal counts
        counts = f"{done:,} of {total:,} requests"
        state.offline = f"{counts} of {source.name} answered, {pace}"

    urls, api_key = state.schedulers, state.api_key
    try:
        found = answer_file(source, output, urls, show, api_key=api_key, profile=profile, halt=halt)
    except Halted:
        return f"{counts} of {source} answered; the same command goes on with the rest"
    except (CannotRun, OSError) as error:
        return f"{source} is not answered: {error}"
    except Exception as error:  # a defect, which must not end the cluster
        logger.exception("answering %s failed", source)
        return f"{source} is not answered; the same command goes on with it: {error!r}"
    return f"{source}: {found}: {output}"
