"""The engines in their configuration."""

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from foretell.config.instances import InstanceConfig, Members, members_json, parse_members
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.scheduler.placing.instance import PoolInstance
from foretell.services.scheduler.placing.pool import Pool

GOOD = {"instance_id": "a", "url": "http://127.0.0.1:8000/"}


def test_instances_are_read() -> None:
    text = json.dumps([GOOD, {"instance_id": "b", "url": "https://x", "predictor": "unix:///s"}])
    instances = (
        InstanceConfig("a", "http://127.0.0.1:8000"),
        InstanceConfig("b", "https://x", "unix:///s"),
    )
    assert parse_members(text) == Members(instances)


def test_what_a_provisioner_writes_is_read_back() -> None:
    leaving = InstanceConfig("a", "http://127.0.0.1:8000", "unix:/s", draining=True)
    members = Members((leaving,), ("m",))
    assert parse_members(members_json(members)) == members


@pytest.mark.parametrize(
    "items",
    [
        {},
        [5],
        [{"instance_id": "a"}],
        [{"url": "http://x"}],
        [{**GOOD, "weight": 1}],
        [{**GOOD, "predictor": 5}],
        [{**GOOD, "draining": "yes"}],
        {"instances": [GOOD], "models": [5]},
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
        parse_members(json.dumps(items))


@pytest.mark.parametrize("text", ["", "[", "\x00", "[" * 100_000])
def test_what_is_no_json_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="instances: not valid JSON"):
        parse_members(text)


def test_an_engine_that_was_slow_to_answer_is_not_taken_for_slow_for_ever() -> None:
    instance = PoolInstance(InstanceConfig("a", "http://127.0.0.1:8000"))
    for _ in range(50):
        instance.learn_answer_delay(1.0)
    assert instance.answer_delay_s > 0.9
    instance.forget_answer_delay(120.0)
    assert instance.answer_delay_s < 0.02


def test_an_outage_is_taken_to_last_as_long_again_as_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr("foretell.services.scheduler.placing.pool.time.monotonic", lambda: now_s)
    pool = Pool(
        json.dumps([GOOD]),
        None,  # type: ignore[arg-type]  # which is not called here
        SchedulerMetrics(CollectorRegistry()),
        engine_api_key="",
        health_interval_s=1.0,
        health_timeout_s=1.0,
        health_failures=1,
    )
    engine = pool.instances["a"]
    now_s = 107.0
    assert pool.out_for_s("m") == pool.out_for_s() == 7.0
    engine.up_s, engine.model_names = 105.0, frozenset({"m"})
    assert (pool.out_for_s("m"), pool.out_for_s(), pool.out_for_s("other")) == (2.0, 2.0, 7.0)
