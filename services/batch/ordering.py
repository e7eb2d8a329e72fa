"""The order in which the lines of batches are sent: the one that ends soonest in simulation.

Until an order is known, lines are sent in the order of their file. The order is computed again
whenever enough more lines have ended to estimate the lengths of the others better.
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
"""A batch with no more lines left is not ordered: they are in flight together in any order."""
_AGAIN_AFTER = 4  # times as many ended lines
_ANSWERS = 4096  # the latest, from which the lengths of others are learnt
_EMBEDDINGS = "/v1/embeddings"  # have no output tokens, so there is nothing to blend


@dataclass(slots=True)
class _Known:
    """What is known about one batch."""

    answers: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_ANSWERS))
    """Line and output tokens of the latest answers."""
    next: int = 0
    """The number of ended lines from which on its order is computed again."""


class Ordering:
    """Ranks the lines of batches that this worker has taken."""

    def __init__(self, work: Work, folder: Path, files_url: str = "", profile: str = "") -> None:
        """`folder`, `files_url`: as in `BatchStore`. `profile`: GPU profile of the engines; with ""
        or one that is not shipped, lines are only grouped by common prefixes."""
        self._work = work
        self._asked = {
            "folder": str(folder),
            "files_url": files_url,
            "profile": profile if profile in list_profiles() else "",
        }
        self._known: dict[str, _Known] = {}
        self._task: asyncio.Task[None] | None = None
        self.density = 0.0
        """Compute time over KV-cache read time of the batch ordered last; 0: unknown."""
        self.said = ""
        """Describes the first order that was computed, or why there was none."""

    def learn(self, batch_id: str, ended: Sequence[tuple[int, Record]]) -> None:
        """Note the output lengths of lines that have ended."""
        tokens = ((line, record.usage.output_tokens) for line, record in ended if record.ok)
        self._of(batch_id).answers.extend(tokens)

    def look(self, batches: Sequence[Batch]) -> None:
        """Start ordering the first of `batches` that is due. They are all batches in progress."""
        self._known = {each.id: self._of(each.id) for each in batches}
        if self._task is None or self._task.done():
            due = next(filter(self._due, batches), None)
            self._task = asyncio.create_task(self._order(due)) if due else None

    async def close(self) -> None:
        """Cancel the computation in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _order(self, batch: Batch) -> None:
        """Rank the remaining lines of a batch in the best order known now. If none is found, they
        keep their order."""
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
        except Exception as error:  # a defect must not keep the batch from ending
            logger.exception("the order of %s was not found", batch.id)
            found = {"error": repr(error)}
        said = _said(found)
        logger.info("%s with %d requests left: %s", batch.id, batch.counts.left, said)
        self.said = self.said or said
        self.density = found.get("density", 0.0)

    async def _judged(self, batch: Batch, known: _Known) -> dict[str, Any]:
        """Run `foretell.services.batch.judge`, and return its answer."""
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
