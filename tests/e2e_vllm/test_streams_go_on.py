"""An engine is killed during its answers, and another one continues them.

It runs last, since the engine stays dead. `docs/operate.md` says what these tests show.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import httpx
import pytest

from tests.e2e.cluster import Cluster, until
from tests.e2e_vllm.vllm_engines import ENGINES, model_of

pytestmark = [pytest.mark.timeout(600), pytest.mark.vllm]

TOKENS = 200
BEGUN = 12
"""Events after which a stream counts as in progress."""
CHAT = {"messages": [{"role": "user", "content": "Tell me of the sea."}]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string"}, "minItems": 400}},
    "required": ["names"],
}
LONG_TEXT = {"type": "string", "minLength": 900, "pattern": "[a-z ]{900,}"}


def called(at: dict[str, Any], **fields: object) -> dict[str, Any]:
    """The fields of a request with a tool whose only argument is long."""
    parameters = {"type": "object", "properties": {"at": at}, "required": ["at"]}
    function = {"name": "look", "parameters": parameters, **fields}
    return {"tools": [{"type": "function", "function": function}]}


CALLED = called(LONG_TEXT)
CALLED_STRICTLY = called(SCHEMA["properties"]["names"], strict=True) | {
    "logit_bias": {"201": -100, "204": -100, "223": -100}
}
"""Without `strict`, vLLM allows any JSON as arguments; without the bias, endless blanks follow
their first brace."""
EXACT: dict[str, dict[str, Any]] = {
    "chat": CHAT,
    "completion": {"prompt": "the model server"},
    "token ids as prompt": {"prompt": [300, 301, 302]},
    "usage": CHAT | {"stream_options": {"include_usage": True}},
    "usage in each event": CHAT
    | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "stop": {"prompt": "every engine", "stop": ["a word that never comes", "zzz"]},
    "stop_token_ids": {"prompt": "every engine", "stop_token_ids": [5, 7]},
    "allowed_token_ids": {"prompt": "a request", "allowed_token_ids": list(range(300, 400))},
    "a prompt that is cut": {"prompt": "the model server", "truncate_prompt_tokens": 3},
    "min_tokens": {"prompt": "a request", "min_tokens": 190, "ignore_eos": False},
    "repetition_penalty": {"prompt": "the model server", "repetition_penalty": 1.2},
    "logit_bias": {"prompt": "the model server", "logit_bias": {"58": -100, "512": 2}},
    "bad_words": {"prompt": "the model server", "bad_words": ["X"]},
    "structured_outputs": {
        "prompt": "the model server",
        "structured_outputs": {"regex": "[a-z ]{2000,}"},
    },
    "response_format": CHAT
    | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    "tools": CHAT
    | {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "none",
    },
    "a tool of its own accord": CHAT
    | CALLED
    | {
        "tool_choice": "auto",
        "structured_outputs": {
            "regex": '<tool_call>\\n\\{"name": "look", "arguments": \\{"at": "[a-z ]{900,}"\\}\\}'
        },
    },
    "a named tool": CHAT
    | CALLED_STRICTLY
    | {"tool_choice": {"type": "function", "function": {"name": "look"}}},
    "a required tool": CHAT | CALLED_STRICTLY | {"tool_choice": "required"},
    "logprobs of a chat": CHAT | {"logprobs": True, "top_logprobs": 2},
    "logprobs of a completion": {"prompt": "the model server", "logprobs": 1},
    "return_token_ids": CHAT | {"return_token_ids": True},
    "n": CHAT | {"n": 2, "temperature": 1.0, "top_k": 1},
    "n of a completion": {
        "prompt": "every engine",
        "n": 3,
        "temperature": 1.0,
        "top_k": 1,
        "logprobs": 0,
        "stream_options": {"include_usage": True},
    },
}
"""Requests that are continued exactly: the text equals that of an undisturbed, greedy engine."""
DIFFERS: dict[str, dict[str, Any]] = {
    "temperature": CHAT | {"temperature": 1.0},
    "seed": CHAT | {"temperature": 1.0, "seed": 7},
    "presence_penalty": {"prompt": "the model server", "presence_penalty": 1.0},
    "frequency_penalty": {"prompt": "the model server", "frequency_penalty": 1.0},
    "n with draws": CHAT | {"n": 2, "temperature": 1.0},
}
"""Requests that are continued from the same tokens, and may differ after them."""
ENDED: dict[str, dict[str, Any]] = {
    "echo": {"prompt": "the model server", "echo": True},
    "several prompts": {"prompt": ["the model server", "every engine"]},
    "include_reasoning": CHAT | {"include_reasoning": True},
}
"""Requests that are not continued."""


@dataclass
class Answer:
    """What a client received of one stream."""

    instance: str = ""
    texts: dict[int, str] = field(default_factory=dict)
    """The text of each choice, in order of arrival."""
    entries: dict[str, list[object]] = field(default_factory=dict)
    """The entries for each token, by kind and choice, except log probabilities."""
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    events: int = 0
    usage: dict[str, int] | None = None
    ends: list[str] = field(default_factory=list)
    heads: set[tuple[str, int]] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    error: str = ""

    @property
    def text(self) -> str:
        return "|".join(text for _, text in sorted(self.texts.items()))

    def take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.ends.append("done")
        elif line:
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                self.error = event["error"]["code"]
                return
            self.events += 1
            self.heads.add((event["id"], event["created"]))
            usage = event.get("usage")
            self.usage = usage or self.usage
            for choice in event["choices"]:
                self._take_choice(choice)

    def _take_choice(self, choice: dict[str, Any]) -> None:
        index, delta = choice["index"], choice.get("delta", choice)
        said = delta.get("content") or delta.get("text") or ""
        for call in delta.get("tool_calls") or ():
            self.calls |= {call["id"]} if call.get("id") else set()
            called = call["function"]
            said += (called.get("name") or "") + (called.get("arguments") or "")
        self.texts[index] = self.texts.get(index, "") + said
        self.ends += [choice["finish_reason"]] if choice["finish_reason"] else []
        logprobs = choice.get("logprobs") or {}
        tokens = logprobs.get("content") or []
        values = [each["logprob"] for each in tokens] or logprobs.get("token_logprobs")
        self.logprobs.setdefault(index, []).extend(values or ())
        for kind, entries in (
            ("id", choice.get("token_ids")),
            ("token", [each["token"] for each in tokens] or logprobs.get("tokens")),
            ("offset", logprobs.get("text_offset")),
        ):
            self.entries.setdefault(f"{kind} {index}", []).extend(entries or ())

    def told(self) -> tuple[object, ...]:
        """The parts that must be the same from another engine."""
        ends = sorted(self.ends)
        return (self.text, self.entries, ends, self.usage or {}, len(self.heads), self.error)


async def stream(
    client: httpx.AsyncClient,
    body: dict[str, Any],
    answer: Answer,
    headers: dict[str, str] | None = None,
) -> Answer:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with client.stream("POST", path, json=body, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        answer.instance = response.headers["x-foretell-instance"]
        async for line in response.aiter_lines():
            answer.take(line)
    return answer


def bodies(model: str, cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    usual = {"model": model, "max_tokens": TOKENS, "stream": True}
    return {
        name: usual | {"temperature": 0, "ignore_eos": name != "response_format"} | case
        for name, case in cases.items()
    }


def amidst(answers: dict[str, Answer]) -> list[str]:
    """The names of the answers that have begun and not yet ended."""
    return [name for name, each in answers.items() if each.events >= BEGUN and not each.ends]


def fullest(answers: dict[str, Answer]) -> tuple[int, str]:
    """The engine with the most streams in progress, after their number."""
    names = Counter(answers[name].instance for name in amidst(answers))
    return max(((count, name) for name, count in names.items()), default=(0, ""))


async def keep_asking(
    client: httpx.AsyncClient,
    body: dict[str, Any],
    begin: Callable[[], Answer],
    killed: asyncio.Event,
) -> None:
    """Repeat a request whenever its answer ends before the engine is killed."""
    while not killed.is_set():
        await stream(client, body, begin())


async def disturbed(
    running: Cluster, asked: dict[str, dict[str, Any]]
) -> tuple[dict[str, Answer], str]:
    """The answers, during which the engine with most of them is killed, and its name.

    All are kept in progress until then: however fast the engines are and wherever each request
    goes, one of two engines soon has a third of them in progress.
    """
    answers = {name: Answer() for name in asked}

    def begin(name: str) -> Answer:
        answers[name] = Answer()
        return answers[name]

    killed = asyncio.Event()
    async with (
        httpx.AsyncClient(base_url=running.endpoint, timeout=300) as client,
        asyncio.TaskGroup() as group,
    ):
        for name, body in asked.items():
            group.create_task(keep_asking(client, body, partial(begin, name), killed))
        await asyncio.to_thread(until, lambda: fullest(answers)[0] >= len(asked) // 3, 200.0)
        _, victim = fullest(answers)
        running.kill(victim)
        killed.set()
    return answers, victim


async def undisturbed(running: Cluster, asked: dict[str, dict[str, Any]]) -> dict[str, Answer]:
    async with httpx.AsyncClient(base_url=running.endpoint, timeout=300) as client:
        found = await asyncio.gather(*(stream(client, body, Answer()) for body in asked.values()))
    return dict(zip(asked, found, strict=True))


@pytest.mark.parametrize("name", EXACT)
def test_any_engine_goes_on_exactly(running: Cluster, name: str) -> None:
    """Both engines run: an answer begun on one is continued on the other, after any token."""
    body = bodies(model_of(running), EXACT)[name] | {"return_token_ids": True}
    urls = [running.component(f"engine-{index}")["address"] for index in range(ENGINES)]
    whole, ids = told(urls[0], body)
    if "tool" in name and name != "tools":
        assert '"at"' in whole.text
        assert len(whole.calls) == 1
    for begun in {1, Random(name).randrange(2, TOKENS - 2), TOKENS - 1}:
        known = [each[:begun] for each in ids.values()]
        brought: dict[str, Any] = {"foretell_output_ids": [each for one in known for each in one]}
        if len(known) > 1:
            brought["foretell_output_lengths"] = list(map(len, known))
        found, again = told(urls[1], body | {"vllm_xargs": brought})
        assert again == ids, begun
        assert (found.text, sorted(found.ends)) == (whole.text, sorted(whole.ends)), begun
        assert (found.usage, found.entries) == (whole.usage, whole.entries), begun
        for index, logprobs in whole.logprobs.items():  # known tokens have zeros
            assert len(found.logprobs[index]) == len(logprobs), begun
            assert found.logprobs[index][begun:] == pytest.approx(logprobs[begun:], abs=1e-3)


@pytest.mark.parametrize("shown", [False, True])
def test_a_stop_string_is_found_across_the_seam(running: Cluster, shown: bool) -> None:
    """One engine has sent its first characters, the other one sends the rest."""
    body = bodies(model_of(running), EXACT)["completion"] | {"return_token_ids": True}
    urls = [running.component(f"engine-{index}")["address"] for index in range(ENGINES)]
    text = told(urls[0], body)[0].text
    at = next(at for at in range(60, len(text)) if text.find(text[at : at + 12]) == at)
    body |= {"stop": [text[at : at + 12]], "include_stop_str_in_output": shown}
    whole, ids = told(urls[0], body)
    assert (whole.text, whole.ends) == (text[: at + 12 * shown], ["stop", "done"])
    for begun in range(max(1, len(ids[0]) - 12), len(ids[0])):
        brought = {"foretell_output_ids": ids[0][:begun]}
        found, again = told(urls[1], body | {"vllm_xargs": brought})
        assert (found.text, found.ends, again) == (whole.text, whole.ends, ids), begun
        assert found.usage == whole.usage, begun


def told(url: str, body: dict[str, Any]) -> tuple[Answer, dict[int, list[int]]]:
    """The answer that a client reads from an engine's stream, and its token ids by choice."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    answer, ids = Answer(), dict[int, list[int]]()
    with httpx.stream("POST", url + path, json=body, timeout=120) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            answer.take(line)
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    ids.setdefault(choice["index"], []).extend(choice.get("token_ids") or [])
    return answer, dict(sorted(ids.items()))


def test_another_engine_goes_on_with_what_a_killed_one_began(running: Cluster) -> None:
    model = model_of(running)
    asked = bodies(model, EXACT | DIFFERS | ENDED)
    truth = asyncio.run(undisturbed(running, bodies(model, EXACT)))  # also compiles grammars
    found, victim = asyncio.run(disturbed(running, asked))
    until(lambda: not healthy(running, victim), 60.0)
    for name, answer in found.items():
        assert len(answer.heads) == 1, name
        if name in ENDED:  # fails, unless it had ended or had not begun
            assert bool(answer.error) is not bool(answer.ends), name
            assert answer.error in ("", "engine_lost"), name
            continue
        assert not answer.error, name
        assert len(answer.ends) == 1 + len(answer.texts), (name, answer.ends)
        if name in EXACT:
            assert answer.told() == truth[name].told(), name
            for index, logprobs in truth[name].logprobs.items():
                assert answer.logprobs[index] == pytest.approx(logprobs, abs=1e-3), name
            assert len(answer.calls) == len(truth[name].calls), name
    metrics = httpx.get(f"{running.endpoint}/metrics").text
    assert f'foretell_continuations_total{{instance_id="{victim}"' in metrics


def healthy(running: Cluster, instance: str) -> bool:
    status = httpx.get(f"{running.endpoint}/status", timeout=60).json()
    return any(i["healthy"] for i in status["instances"] if i["instance_id"] == instance)
