"""Conversations: from messages, and over the wire."""

import pytest

from foretell import wire
from foretell.length.conversation import Conversation, EarlierTurn, split_chat
from foretell.openai.conversation import conversation_of
from foretell.openai.parsing import parse
from foretell.openai.surface import ENDPOINTS
from foretell.v1 import tagger_pb2

COMPLETIONS, CHATS = ENDPOINTS["/v1/completions"], ENDPOINTS["/v1/chat/completions"]

CHAT = b"""{"model": "m", "stop": ["a", "b"], "max_tokens": 50, "messages": [
  {"role": "system", "content": "Be kind."},
  {"role": "user", "content": "one"},
  {"role": "assistant", "content": "two"},
  {"role": "user", "content": [{"type": "text", "text": "three \\ud83d"}]},
  {"role": "tool", "content": "four"}
]}"""


def test_messages_between_two_answers_make_up_one_prompt() -> None:
    messages = [("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d"), ("tool", "e")]
    assert split_chat(messages) == ("", [EarlierTurn("a\nb", "c", 1)], "d\ne")


def test_the_beginning_of_an_answer_belongs_to_what_is_to_be_answered() -> None:
    messages = [("developer", "x"), ("user", "a"), ("assistant", "Sure:")]
    assert split_chat(messages) == ("x", [], "a\nSure:")
    assert split_chat([("system", "x")]) == ("x", [], "")


def test_a_chat_request_is_told_as_a_conversation() -> None:
    found = conversation_of(parse(CHATS, CHAT), 40)
    assert found == Conversation(
        prompt="three ?\nfour",
        characters=12,
        prompt_tokens=40,
        system="Be kind.",
        earlier=(EarlierTurn("one", "two", 3),),
        exchanges=1,
        max_tokens=50,
        stops=2,
        kind="stop",
    )


@pytest.mark.parametrize(
    ("prompt", "text"), [('"hello"', "hello"), ('["a", "long"]', "long"), ("[1, 2, 3]", "")]
)
def test_a_completion_has_one_prompt(prompt: str, text: str) -> None:
    raw = f'{{"model": "m", "prompt": {prompt}, "stop": "x"}}'.encode()
    found = conversation_of(parse(COMPLETIONS, raw), 3)
    assert (found.prompt, found.earlier, found.stops) == (text, (), 1)
    assert found.max_tokens == 16  # the default of engines


def test_the_wire_keeps_a_conversation() -> None:
    said = conversation_of(parse(CHATS, CHAT), 40)
    request = tagger_pb2.TagRequest()
    wire.conversation_to_proto(said, request)
    assert wire.conversation_from_proto(request, 1_000) == said
