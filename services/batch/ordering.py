"""The order in which the lines of batches are sent: the one that is done soonest by simulation.

Lines are sent in the order of their file until it is known. It is found again whenever so many more
answers have come that they tell more of how long the others will be.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretell.batch.records import Record
from foretell.batch.states import Batch
from foretell.config import list_profiles
from foretell.services.batch.work import Work
from foretell.services.process.aside import AsideFailed, computed_aside
from foretell.services.process.database import DatabaseError

logger = logging.getLogger(__name__)

_PROCESS = "foretell.services.batch.judge"
_LIMIT_S = 900.0
FEWEST_LINES = 64
"""Fewer lines than these are on their way together, whatever their order."""
_AGAIN_AFTER = 4  # times as many answers
_ANSWERS = 4096  # the latest, which the lengths of others are learnt from
_EMBEDDINGS = "/v1/embeddings"  # have no answers, so that there is nothing to blend


@dataclass(slots=True)
class _Known:
    """What is known of one batch."""

    answers: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_ANSWERS))
    """Line and tokens of the latest answers."""
    next: int = 0
    """Answers after which its order is found again."""


class Ordering:
    """Ranks the lines of batches that this worker has taken."""

    def __init__(self, work: Work, folder: Path, files_url: str = "", profile: str = "") -> None:
        """`folder`, `files_url`: of the work's `Store`. `profile`: GPU profile of the engines; ""
        or one that is not shipped: lines that begin alike are sent together, and no more."""
        self._work = work
        self._asked = {
            "folder": str(folder),
            "files_url": files_url,
            "profile": profile if profile in list_profiles() else "",
        }
        self._known: dict[str, _Known] = {}
        self._task: asyncio.Task[None] | None = None
        self.density = 0.0
        """Time to compute over time to read the KV cache, of the batch ordered last; 0: unknown."""
        self.said = ""
        """What there is to say of the first order that was looked for."""

    def learn(self, batch_id: str, ended: Sequence[tuple[int, Record]]) -> None:
        """These lines of a batch have been answered."""
        tokens = ((line, record.usage.output_tokens) for line, record in ended if record.ok)
        self._of(batch_id).answers.extend(tokens)

    def look(self, batches: Sequence[Batch]) -> None:
        """Begin to order the first of `batches`, all that are in progress, for which it is time."""
        self._known = {each.id: self._of(each.id) for each in batches}
        if self._task is None or self._task.done():
            due = next(filter(self._due, batches), None)
            self._task = asyncio.create_task(self._order(due)) if due else None

    async def close(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _order(self, batch: Batch) -> None:
        """Have the lines of a batch that are left sent in the best order that is known of now.
        Where none can be found, their order stays."""
        known = self._of(batch.id)
        known.next = max(FEWEST_LINES, _AGAIN_AFTER * (batch.counts.total - batch.counts.left))
        try:
            if not await asyncio.to_thread(self._work.take, batch.id):
                return  # another worker orders it
            found = await self._judged(batch, known)
            if "error" not in found:
                await asyncio.to_thread(self._work.rank, batch.id, found["lines"])
        except (TimeoutError, AsideFailed, OSError, DatabaseError) as error:
            found = {"error": str(error) or type(error).__name__}
        except Exception as error:  # a defect, which must not keep the batch from its end
            logger.exception("the order of %s was not found", batch.id)
            found = {"error": repr(error)}
        said = _said(found)
        logger.info("%s with %d requests left: %s", batch.id, batch.counts.left, said)
        self.said = self.said or said
        self.density = found.get("density", 0.0)

    async def _judged(self, batch: Batch, known: _Known) -> dict[str, Any]:
        """What `foretell.services.batch.judge` says."""
        left = await asyncio.to_thread(self._work.left, batch.id)
        answers = dict(known.answers)
        asked = self._asked | {"file": batch.input_file_id, "left": left, "answers": answers}
        output = await computed_aside(_PROCESS, json.dumps(asked).encode(), _LIMIT_S)
        found: dict[str, Any] = json.loads(output)
        return found

    def _of(self, batch_id: str) -> _Known:
        return self._known.setdefault(batch_id, _Known())

    def _due(self, batch: Batch) -> bool:
        counts = batch.counts
        enough = counts.left > FEWEST_LINES and batch.endpoint != _EMBEDDINGS
        return enough and counts.total - counts.left >= self._of(batch.id).next


def _said(found: dict[str, Any]) -> str:
    if "error" in found:
        return f"sent in the order of the file, because none can be found: {found['error']}"
    gain = ""
    if "speed_up_over_fcfs" in found:
        gain = f", simulated {found['speed_up_over_fcfs']:.2f} x the file's order"
    shared = f"{found['sharing_ratio']:.0%} of prompts shared"
    density = f"density {found['density']:.2f}, " if "density" in found else ""
    return f"sent in order '{found['soonest']}'{gain} ({density}{shared})"
