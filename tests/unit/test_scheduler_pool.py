"""Who the engines are, as their configuration says."""

import json
from typing import Any

import pytest

from services.scheduler.placing.pool import InstanceConfig, parse_instances

GOOD = {"instance_id": "a", "url": "http://127.0.0.1:8000/"}


def test_instances_are_read() -> None:
    text = json.dumps([GOOD, {"instance_id": "b", "url": "https://x", "predictor": "unix:///s"}])
    assert parse_instances(text) == [
        InstanceConfig("a", "http://127.0.0.1:8000"),
        InstanceConfig("b", "https://x", "unix:///s"),
    ]


@pytest.mark.parametrize(
    "items",
    [
        {},
        [5],
        [{"instance_id": "a"}],
        [{"url": "http://x"}],
        [{**GOOD, "weight": 1}],
        [{**GOOD, "predictor": 5}],
        [{**GOOD, "instance_id": 5}],
        [{**GOOD, "instance_id": ["a"]}],
        [{**GOOD, "instance_id": "a\r\nset-cookie: x"}],
        [{**GOOD, "instance_id": "caf\u00e9"}],
        [{**GOOD, "url": 5}],
        [{**GOOD, "url": "127.0.0.1:8000"}],
        [{**GOOD, "url": "ftp://x"}],
        [{**GOOD, "url": "http://"}],
        [{**GOOD, "url": "http://x:port"}],
        [GOOD, GOOD],
    ],
)
def test_wrong_instances_are_refused_in_words(items: Any) -> None:
    with pytest.raises(ValueError, match="instances: "):
        parse_instances(json.dumps(items))


@pytest.mark.parametrize("text", ["", "[", "\x00", "[" * 100_000])
def test_what_is_no_json_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="instances: not valid JSON"):
        parse_instances(text)
