"""The length, priority, class and targets in a request's body."""

import json
import math
from typing import Any

import pytest

from foretell.cosched import JobClass, Targets, job_of
from foretell.cosched.deadlines import Job
from foretell.model import OFFLINE_PRIORITY, Slo
from foretell.openai.parsing import (
    ApiRequest,
    for_engine,
    parse,
)
from foretell.openai.slo import Terms
from tests.unit.parsed import COMPLETIONS, chat, completion


def test_the_engine_gets_our_fields_and_not_the_hint() -> None:
    request = completion(vllm_xargs={"foretell_output_tokens": 9, "mine": 1, "foretell_id": "x"})
    assert request.hint_tokens == 9
    body = json.loads(for_engine(request, "id-1", 12.345))
    assert body["vllm_xargs"] == {
        "mine": 1,
        "foretell_id": "id-1",
        "foretell_predicted_tokens": 12.3,
    }
    assert math.isclose(json.loads(for_engine(completion(top_p=0.1), "r", 1.0))["top_p"], 0.1)


def test_the_engine_hears_the_class_and_the_targets() -> None:
    def told(request: ApiRequest) -> Job:
        return job_of(json.loads(for_engine(request, "r", 1.0))["vllm_xargs"])

    assert told(completion()) == job_of({})
    assert told(completion(priority=OFFLINE_PRIORITY)).job_class is JobClass.OFFLINE
    offline = completion(vllm_xargs={"class": "offline"}, priority=3)
    assert told(offline).job_class is JobClass.OFFLINE
    assert offline.priority == OFFLINE_PRIORITY
    for raw, priority in (
        (
            b'{"model":"m","prompt":"a","priority":3,"vllm_xargs":{"class":"offline"}}',
            OFFLINE_PRIORITY,
        ),
        (b'{"model":"m","prompt":"a","priority":3}', 7),
    ):
        assert parse(COMPLETIONS, raw, priority="7").priority == priority
        assert parse(COMPLETIONS, raw, least_priority=9).priority == max(
            9, parse(COMPLETIONS, raw).priority
        )
    assert parse(COMPLETIONS, raw, priority="high").priority == 3
    for slo in (Slo(ttft_s=0.5), Slo(tpot_s=0.05), Slo(ttft_s=1.0, tpot_s=0.05)):
        asked = completion(vllm_xargs={"mine": 1})._replace(terms=Terms(slo))
        assert told(asked).targets == Targets(slo.ttft_s, slo.tpot_s)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 70, "ignore_eos": True}, 70),
        ({"max_tokens": 70, "ignore_eos": False}, 0),
        ({"max_tokens": 70, "ignore_eos": True, "stop": ["END"]}, 0),
        ({"max_tokens": 70, "ignore_eos": True, "stop": []}, 70),
        ({"max_tokens": 70, "ignore_eos": True, "stop_token_ids": [7]}, 0),
        ({"max_tokens": 70, "min_tokens": 70, "stop": "END"}, 70),
        ({"max_tokens": 70, "min_tokens": 69}, 0),
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 70, "ignore_eos": True, "vllm_xargs": {"foretell_output_tokens": 9}}, 70),
        ({"max_tokens": 70, "vllm_xargs": {"foretell_output_tokens": 9}}, 9),
        ({"nvext": {"agent_hints": {"osl": 9}}}, 9),
        ({"nvext": {"agent_hints": {"osl": 8}}, "vllm_xargs": {"foretell_output_tokens": 9}}, 9),
        ({"nvext": {"agent_hints": {"osl": "9"}}}, 0),
        ({"nvext": {"agent_hints": {"osl": 2**31}}}, 0),
        ({"nvext": {"agent_hints": [9]}}, 0),
        ({"nvext": 9}, 0),
        ({"max_tokens": 70, "ignore_eos": "yes", "min_tokens": "70"}, 0),
    ],
)
def test_a_length_that_is_certain_is_known(fields: dict[str, Any], tokens: int) -> None:
    assert completion(**fields).hint_tokens == chat(**fields).hint_tokens == tokens


@pytest.mark.parametrize(
    ("fields", "wanted", "given"),
    [
        ({"nvext": {"agent_hints": {"priority": 5}}}, -5, 0),
        ({"nvext": {"agent_hints": {"priority": -5}}}, 5, 0),
        ({"nvext": {"agent_hints": {"priority": 5}}, "priority": 3}, 3, 3),
        ({"nvext": {"agent_hints": {"priority": 5}}, "priority": 0}, 0, 0),
        ({"nvext": {"agent_hints": {"priority": 2**31}}}, 0, 0),
        ({"nvext": {"agent_hints": {"priority": "5"}}}, 0, 0),
        ({"nvext": {"agent_hints": {"priority": True}}}, 0, 0),
    ],
)
def test_the_priority_of_dynamos_clients_is_a_hint(
    fields: dict[str, Any], wanted: int, given: int
) -> None:
    for request in (completion(**fields), chat(**fields)):
        assert (request.priority, request.given_priority) == (wanted, given)
    raw = json.dumps({"model": "m", "prompt": "a", **fields}).encode()
    bounded = parse(COMPLETIONS, raw, least_priority=-2)
    assert bounded.priority == bounded.given_priority == max(wanted, -2)
    assert parse(COMPLETIONS, raw, priority="9").given_priority == 9


def test_an_endless_answer_is_as_long_as_the_endpoint_allows() -> None:
    assert completion(ignore_eos=True).hint_tokens == 16
    assert chat(ignore_eos=True).hint_tokens == 0  # the engine's max_model_len decides
    assert chat(max_completion_tokens=9, max_tokens=70, ignore_eos=True).hint_tokens == 9


def test_min_tokens_never_exceed_max_tokens() -> None:
    assert chat(min_tokens=50).min_tokens == 50
    assert chat(min_tokens=50, max_tokens=20).min_tokens == 20  # otherwise the engine refuses it
    assert [chat(min_tokens=wrong).min_tokens for wrong in (-1, "5", None, True)] == [0] * 4


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "plain"),
        ({"stop": [], "stop_token_ids": [], "tools": None}, "plain"),
        ({"response_format": {"type": "text"}}, "plain"),
        ({"stop": "END"}, "stop"),
        ({"stop_token_ids": [7]}, "stop"),
        ({"stop": "END", "response_format": {"type": "json_object"}}, "structured"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "structured"),
        ({"guided_regex": "a+"}, "structured"),
        ({"guided_regex": None}, "plain"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "function"}], "tool_choice": "none"}, "plain"),
        ({"tools": [{"type": "function"}], "tool_choice": "required", "stop": "x"}, "tools"),
    ],
)
def test_kinds_of_requests_are_told_apart(fields: dict[str, Any], kind: str) -> None:
    assert chat(**fields).kind == kind
