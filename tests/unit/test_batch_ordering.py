"""When the order of a batch's lines is computed again, and from what."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretell.batch.records import answered
from foretell.batch.states import Batch, Counts, Status
from foretell.services.batch.ordering import FEWEST_LINES, Ordering
from foretell.services.batch.store import BatchStore
from foretell.services.batch.work import FilePlace, Work

BATCH, TOTAL = "batch_1", 10 * FEWEST_LINES


def batch(completed: int, endpoint: str = "/v1/completions", total: int = TOTAL) -> Batch:
    return Batch(
        *(BATCH, "", "file_1", endpoint, "24h", 0, 1 << 40),
        status=Status.IN_PROGRESS,
        counts=Counts(total, completed),
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The inputs of the process that finds orders; this one just reverses the lines."""
    found: list[dict[str, Any]] = []

    async def aside(module: str, data: bytes, limit_s: float) -> bytes:
        del module, limit_s
        found.append(json.loads(data))
        told = {"lines": found[-1]["left"][::-1], "soonest": "dfs", "sharing_ratio": 0.5}
        return json.dumps(told).encode()

    monkeypatch.setattr("foretell.services.batch.ordering.computed_aside", aside)
    return found


async def test_it_is_found_again_after_four_times_as_many_answers(
    tmp_path: Path, asked: list[dict[str, Any]]
) -> None:
    store = BatchStore(tmp_path)
    work = Work(store, alone=True)
    store.add_batch(replace(batch(0), status=Status.VALIDATING))
    work.take(BATCH)
    work.enter(BATCH, [FilePlace(n, f"c{n}", 0, 1) for n in range(1, TOTAL + 1)], first=True)
    ordering = Ordering(work, tmp_path)

    async def looked(completed: int) -> int:
        ordering.look([batch(completed)])
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        return len(asked)

    assert await looked(0) == 1
    assert [place.line for place in work.claim(BATCH, 3)] == [TOTAL, TOTAL - 1, TOTAL - 2]
    body = json.dumps({"usage": {"prompt_tokens": 3, "completion_tokens": 41}}).encode()
    ordering.learn(BATCH, [(TOTAL, answered("r", f"c{TOTAL}", 200, "q", body))])
    assert await looked(FEWEST_LINES - 1) == 1
    assert await looked(FEWEST_LINES) == 2
    assert asked[1]["answers"] == {str(TOTAL): 41}
    assert len(asked[1]["left"]) == TOTAL
    assert await looked(4 * FEWEST_LINES - 1) == 2
    assert await looked(4 * FEWEST_LINES) == 3
    assert await looked(TOTAL - FEWEST_LINES) == 3, "the rest is on its way together"
    await ordering.close()
    store.close()


async def test_what_has_no_order_is_not_looked_at(
    tmp_path: Path, asked: list[dict[str, Any]]
) -> None:
    store = BatchStore(tmp_path)
    ordering = Ordering(Work(store, alone=True), tmp_path)
    ordering.look([batch(0, "/v1/embeddings"), batch(0, total=FEWEST_LINES)])
    await ordering.close()
    store.close()
    assert not asked
