"""A scheduler's request log, read as a trace."""

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest

from foretell.tools.simulate.run import read_trace
from foretell.workload import parse_request_log

LINE: dict[str, Any] = {
    "time_unix_s": 1000.0,
    "model_name": "m",
    "finished": True,
    "sequences": 1,
    "priority": 0,
    "placement_s": 0.5,
    "predicted_prompt_tokens": 90,
    "prompt_tokens": 100,
    "predicted_output_tokens": 33.0,
    "length_source": "model",
    "output_tokens": 40,
    "e2e_s": 4.5,
    "ttft_target_s": None,
    "tpot_target_s": 0.1,
}


def lines(*changes: dict[str, Any]) -> list[str]:
    return [json.dumps({**LINE, **change}) for change in changes]


def test_requests_come_as_long_before_as_they_took() -> None:
    first = {"time_unix_s": 999.0, "e2e_s": 10.0}
    trace = parse_request_log(lines({}, first, {"finished": False}, {"output_tokens": None}))
    assert trace.timed
    assert [request.t_s for request in trace.requests] == [988.5, 995.0]
    request = trace.requests[1]
    assert (request.prompt_tokens, request.output_tokens) == (100, 40)
    assert (request.slo.ttft_s, request.slo.tpot_s) == (inf, 0.1)
    assert request.length is not None
    assert (request.length.expected_tokens, request.length.source) == (33.0, "model")


def test_each_sequence_is_an_arrival() -> None:
    requests = parse_request_log(lines({"sequences": 4, "prompt_tokens": 400})).requests
    assert [(r.prompt_tokens, r.output_tokens) for r in requests] == [(90, 10)] * 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (lines({"finished": False}), "answered to its end"),
        (lines({}, {"model_name": "other"}), "several models, m, other"),
        (["{"], "line 1"),
        (['{"time_unix_s": 1}'], "line 1"),
    ],
)
def test_no_trace(text: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_request_log(text)


def test_its_format_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "scheduler-0.requests.jsonl"
    path.write_text("\n".join(lines({}, {})))
    assert len(read_trace(str(path), "auto").requests) == 2
