"""The life of a batch: only legal transitions, and correct counts after each of them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.batch.lines import LineError
from foretell.batch.records import TokenUsage
from foretell.batch.states import ENDED, FOLLOWING, Batch, IllegalTransition, Status

NEW = Batch("batch_1", "a", "file-1", "/v1/completions", "24h", 1000, 87_400)
ERROR = LineError("invalid_json_line", "this line is not valid JSON", None, 3)


def test_a_batch_that_goes_well() -> None:
    batch = NEW.validated(2, "m", 1001).answered(1, 1, TokenUsage(7, 3, 20, 5)).finished(1002)
    shown = batch.sealed("file-2", "file-3", 1003).shown()
    assert shown["status"] == "completed"
    assert shown["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert (shown["output_file_id"], shown["error_file_id"]) == ("file-2", "file-3")
    assert [shown[f"{s}_at"] for s in ("created", "in_progress", "finalizing", "completed")] == [
        *range(1000, 1004)
    ]
    assert shown["model"] == "m"
    assert shown["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 27,
    }


def test_errors_of_its_input_are_told_with_their_lines() -> None:
    shown = NEW.refused((ERROR,), 1001).shown()
    assert shown["status"] == "failed"
    assert shown["errors"] == {
        "object": "list",
        "data": [{"code": ERROR.code, "line": 3, "message": ERROR.message, "param": None}],
    }


def test_what_had_not_ended_counts_as_failed() -> None:
    begun = NEW.validated(5, "m", 1001).answered(2, 1, TokenUsage())
    for batch, end in (
        (begun.cancel(1002).sealed("o", "e", 1003), "cancelled"),
        (begun.timed_out(1002).sealed("o", "e", 1003), "expired"),
    ):
        assert batch.status == end
        assert (batch.counts.completed, batch.counts.failed) == (2, 3)


ACTIONS = {
    "validated": lambda b, n: b.validated(n, "m", n),
    "refused": lambda b, n: b.refused((ERROR,), n),
    "answered": lambda b, n: b.answered(n % 2, 1 - n % 2, TokenUsage(1, 0, 1, 0)),
    "finished": lambda b, n: b.finished(n),
    "timed_out": lambda b, n: b.timed_out(n),
    "cancel": lambda b, n: b.cancel(n),
    "sealed": lambda b, n: b.sealed("o", None, n),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(1, 4)), max_size=20))
def test_whatever_is_asked_of_it_a_batch_stays_legal(wishes: list[tuple[str, int]]) -> None:
    batch, path = NEW, [NEW.status]
    for name, number in wishes:
        nothing_left = batch.counts.left == 0
        if (name == "answered" and nothing_left) or (name == "finished" and not nothing_left):
            continue
        try:
            after = ACTIONS[name](batch, number)
        except IllegalTransition:
            continue
        assert batch.status not in ENDED
        if after.status is not batch.status:
            assert after.status in FOLLOWING[batch.status]
            path.append(after.status)
        counts = after.counts
        assert counts.completed + counts.failed + counts.left == counts.total
        assert counts.left >= 0
        assert counts.completed >= batch.counts.completed
        assert after.usage.output_tokens >= batch.usage.output_tokens
        batch = after
    assert len(path) == len(set(path))
    assert batch.status not in ENDED or batch.status is Status.FAILED or batch.counts.left == 0
    assert set(batch.reached_unix_s) == {status.value for status in path[1:]}
    assert Batch.from_document(json.loads(json.dumps(batch.document()))) == batch


def test_every_state_leads_to_an_end() -> None:
    for status in Status:
        reached = {status}
        for _ in Status:
            reached |= {after for each in reached for after in FOLLOWING[each]}
        assert reached & ENDED


def test_a_batch_that_has_ended_stays_so() -> None:
    for end in ENDED:
        batch = replace(NEW, status=end)
        for change in (batch.cancel, batch.timed_out):
            with pytest.raises(IllegalTransition):
                change(2000)
