"""Anthropic's SDK against /v1/messages. Run with an endpoint and a model."""

import asyncio
import sys

import pytest
from anthropic import Anthropic, AsyncAnthropic, BadRequestError, NotFoundError

ENDPOINT, MODEL = sys.argv[1:]
ASKED = {
    "model": MODEL,
    "max_tokens": 12,
    "system": "You are brief.",
    "messages": [{"role": "user", "content": "Where do swallows go in winter?"}],
    "extra_body": {"temperature": 0},  # no longer a parameter of this SDK
}


def main() -> None:
    client = Anthropic(base_url=ENDPOINT, api_key="none", max_retries=0)
    whole = client.messages.create(**ASKED)
    text = whole.content[0].text
    assert text
    assert whole.role == "assistant"
    assert whole.stop_reason in ("max_tokens", "end_turn")
    assert 0 < whole.usage.output_tokens <= 12
    with client.messages.stream(**ASKED) as stream:
        assert "".join(stream.text_stream) == text
        last = stream.get_final_message()
    assert last.stop_reason == whole.stop_reason
    assert last.usage.output_tokens == whole.usage.output_tokens
    counted = client.messages.count_tokens(
        model=MODEL, messages=ASKED["messages"], system=ASKED["system"]
    )
    assert counted.input_tokens == whole.usage.input_tokens
    stopped = client.messages.create(**ASKED | {"stop_sequences": [text.split()[2]]})
    assert stopped.stop_reason == "stop_sequence"
    for wrong, error in (
        ({"model": "no-such-model"}, NotFoundError),
        ({"messages": []}, BadRequestError),
    ):
        with pytest.raises(error):
            client.messages.create(**ASKED | wrong)
    asyncio.run(at_once(text))


async def at_once(text: str) -> None:
    async with AsyncAnthropic(base_url=ENDPOINT, api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(*(client.messages.create(**ASKED) for _ in range(10)))
        assert {answer.content[0].text for answer in answers} == {text}


main()
