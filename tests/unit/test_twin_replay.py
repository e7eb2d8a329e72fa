"""The replay of scenarios, and those that are refused."""

from typing import Any

import pytest

from foretell.engine.replay import replay
from foretell.engine.scenario import ScenarioError, parse_scenario


def request(**changes: Any) -> dict[str, Any]:
    return {"id": "a", "prompt": [["p", 20]], "max_tokens": 2} | changes


def test_a_request_from_arrival_to_flush() -> None:
    lines = list(replay(parse_scenario({"requests": [request(arrival_step=7)]})))
    assert [line["step"] for line in lines] == [7, 8, 9]  # idle time is skipped
    assert lines[0] == {
        "step": 7, "sched": {"a": 20}, "new": ["a"], "resumed": [], "cached": {"a": 0},
        "preempted": [], "finished": [], "aborted": [], "free": 254,
    }  # fmt: skip
    assert lines[1]["finished"] == ["a"]
    assert lines[2]["sched"] == {}  # a step that reports finished requests to the workers
    assert lines[2]["free"] == 256


def test_requests_without_end_are_refused_and_those_of_no_hope_named() -> None:
    for mode in (False, True):
        config = {"num_blocks": 2, "async": mode}
        lines = replay(parse_scenario({"config": config, "requests": [request()]}))
        assert next(lines)["sched"] == {}
        with pytest.raises(ScenarioError, match="a can never go on"):
            list(lines)


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ([], "the scenario: Input should be a valid dictionary"),
        ({"reqests": []}, "reqests: Extra inputs are not permitted"),
        ({"name": 1}, "name: Input should be a valid string"),
        ({"requests": {}}, "requests: Input should be a valid tuple"),
        ({"config": {"num_blcks": 9}}, "config.num_blcks: Extra inputs"),
        ({"config": {"async": 1}}, "config.async: Input should be a valid boolean"),
        ({"config": {"policy": ["fcfs"]}}, "config.policy"),
        ({"config": {"num_blocks": 1}}, "config.num_blocks"),
        ({"config": {"watermark": 1.0}}, "config.watermark"),
        ({"config": {"max_num_seqs": None}}, "config.max_num_seqs"),
        ({"config": {"max_num_seqs": 4, "max_num_active_seqs": 5}}, "config.max_num_active_seqs"),
        ({"requests": [7]}, r"requests\[0\]: Input should be a valid dictionary"),
        ({"requests": [{"id": "a"}]}, r"requests\[0\]\.prompt"),
        ({"requests": [request(id="")]}, r"requests\[0\]\.id"),
        ({"requests": [request(), request()]}, r"requests\[1\]\.id"),
        ({"requests": [request(prompt=[])]}, r"requests\[0\]\.prompt"),
        ({"requests": [request(prompt=[["p", 1.5]])]}, r"requests\[0\]\.prompt\[0\]"),
        ({"requests": [request(prompt=[["p"]])]}, r"requests\[0\]\.prompt\[0\]"),
        ({"requests": [request(prompt=[["p", 2049]])]}, "max_model_len"),
        ({"requests": [request(stop_after=0)]}, r"requests\[0\]\.stop_after"),
        ({"requests": [request(arrival_step=-1)]}, r"requests\[0\]\.arrival_step"),
        ({"requests": [request(priority="high")]}, r"requests\[0\]\.priority"),
    ],
)
def test_malformed_scenarios_are_refused_by_the_key(scenario: Any, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        parse_scenario(scenario)
