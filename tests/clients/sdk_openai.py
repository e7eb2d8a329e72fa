"""OpenAI's SDK: whole answers, streams, tools, async, models and errors. Run with an endpoint."""

import asyncio
import sys

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

ENDPOINT = f"{sys.argv[1]}/v1"
MESSAGES = [{"role": "user", "content": "What does a lighthouse keeper do all day?"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
    }
]


def main() -> None:
    client = OpenAI(base_url=ENDPOINT, api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    asked = {"model": model, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**asked, tools=TOOLS)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage.completion_tokens <= 12
    stream = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage == whole.usage
    completion = client.completions.create(model=model, prompt=["one", "two"], max_tokens=4)
    assert [choice.index for choice in completion.choices] == [0, 1]
    with client.chat.completions.with_streaming_response.create(**asked) as raw:
        assert raw.headers["x-foretell-instance"]
    refused(client, model)
    asyncio.run(at_once(model, text, asked))


def refused(client: OpenAI, model: str) -> None:
    """Check that errors come as the SDK's own exceptions, with the reason."""
    with pytest.raises(NotFoundError, match="no-such-model"):
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    with pytest.raises(BadRequestError, match="max_tokens"):
        client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=-1)


async def at_once(model: str, text: str, asked: dict) -> None:
    async with AsyncOpenAI(base_url=ENDPOINT, api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(
            *(client.chat.completions.create(**asked) for _ in range(20))
        )
        assert {answer.choices[0].message.content for answer in answers} == {text}
        async with await client.chat.completions.create(
            model=model, messages=MESSAGES, stream=True, max_tokens=500
        ) as stream:
            async for _ in stream:
                break  # the client disconnects


main()
