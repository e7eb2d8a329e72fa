"""LangChain's chat model and completion model. Run with an endpoint and a model."""

import asyncio
import sys

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

ENDPOINT, MODEL = sys.argv[1:]


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return word


def main() -> None:
    chat = ChatOpenAI(
        base_url=f"{ENDPOINT}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=12
    )
    asked = [SystemMessage("You are brief."), HumanMessage("How deep is the sea?")]
    whole = chat.invoke(asked)
    assert whole.content
    assert whole.usage_metadata["output_tokens"] <= 12
    assert "".join(chunk.content for chunk in chat.stream(asked)) == whole.content
    assert chat.bind_tools([look_up]).invoke(asked).content
    assert [each.content for each in chat.batch([asked] * 4)] == [whole.content] * 4
    assert asyncio.run(chat.ainvoke(asked)).content == whole.content
    plain = OpenAI(base_url=f"{ENDPOINT}/v1", api_key="none", model=MODEL, max_tokens=8)
    assert plain.invoke("the sea")


main()
