"""Conversion between conversations and `proto/foretell/v1/tagger.proto`."""

from foretell.length.conversation import (
    MOST_EXCHANGES,
    PLAIN,
    Conversation,
    EarlierTurn,
    Kind,
    head_and_tail,
)
from foretell.v1 import tagger_pb2
from foretell.wire.common import fields_of

_NUMBERS = ("prompt_tokens", "max_tokens", "min_tokens", "stops")


def conversation_to_proto(conversation: Conversation, request: tagger_pb2.TagRequest) -> None:
    """Fill in the fields of `request` that describe the conversation."""
    for name in (*_NUMBERS, "prompt", "characters", "system", "exchanges"):
        setattr(request, name, getattr(conversation, name))
    request.kind = kind_to_proto(conversation.kind)
    for exchange in conversation.earlier:
        request.earlier.add(
            prompt=exchange.prompt,
            answer=exchange.answer,
            answer_characters=exchange.answer_characters,
        )


def conversation_from_proto(request: tagger_pb2.TagRequest, most_characters: int) -> Conversation:
    """The conversation that `request` describes, each text cut to `most_characters`."""
    return Conversation(
        prompt=head_and_tail(request.prompt, most_characters),
        characters=max(request.characters, len(request.prompt)),
        **fields_of(request, _NUMBERS),
        system=head_and_tail(request.system, most_characters),
        earlier=tuple(
            EarlierTurn(
                head_and_tail(exchange.prompt, most_characters),
                head_and_tail(exchange.answer, most_characters),
                max(exchange.answer_characters, len(exchange.answer)),
            )
            for exchange in request.earlier[-MOST_EXCHANGES:]
        ),
        exchanges=max(request.exchanges, len(request.earlier)),
        kind=kind_from_proto(request.kind),
    )


def kind_to_proto(kind: Kind) -> tagger_pb2.RequestKind:
    """The number of a kind."""
    return _KIND_NUMBERS[kind]


def kind_from_proto(number: tagger_pb2.RequestKind) -> Kind:
    """The kind of a number; plain for a kind that only a newer peer knows."""
    return _KINDS.get(number, PLAIN)


_KIND_NUMBERS: dict[Kind, tagger_pb2.RequestKind] = {
    "plain": tagger_pb2.REQUEST_KIND_PLAIN,
    "stop": tagger_pb2.REQUEST_KIND_STOP,
    "structured": tagger_pb2.REQUEST_KIND_STRUCTURED,
    "tools": tagger_pb2.REQUEST_KIND_TOOLS,
}
_KINDS = {number: kind for kind, number in _KIND_NUMBERS.items()}
