"""Events of one stream that differ in their text and token ids only, read without parsing JSON."""

from dataclasses import dataclass

import orjson

from foretell.services.scheduler.relay.choice import Choice

IDS = b'"token_ids":['
"""How an event states the ids of its tokens. No text has these bytes: its quotes are escaped."""


@dataclass(frozen=True, slots=True)
class Alike:
    """The bytes that such events share. A stream may have millions, and to parse one costs more
    than to relay it."""

    choice: Choice
    texts: list[str]
    """The choice's texts of the field that these have."""
    head: bytes
    """All before the text."""
    middle: bytes
    """All between text and token ids, from the quote that ends the text on."""
    tail: bytes
    """All behind the token ids, from the bracket that ends them on."""
    hidden: bytes
    """What takes the place of `middle`, ids and `tail`; empty: the ids are shown."""

    def take(self, line: bytes) -> bytes | None:
        """Note an event for its choice: the event as the client gets it; None: it is not alike, and
        nothing was noted. It runs for each chunk of a stream."""
        head, tail = self.head, self.tail
        if not (line.startswith(head) and line.endswith(tail)):
            return None
        end = line.find(b'"', len(head))
        if not line.startswith(self.middle, end):
            return None
        text, ids = line[len(head) : end], line[end + len(self.middle) : -len(tail)]
        if not text or b"\\" in text:  # escaped: for a parser of JSON
            return None
        choice = self.choice
        try:
            said = text.decode()
            if ids.isdigit():  # one, as mostly
                tokens = 1
                choice.ids.append(int(ids))
            else:
                known = [int(each) for each in ids.split(b",")]
                tokens = len(known)
                choice.ids.extend(known)
        except (ValueError, OverflowError):  # a parser may make something of it
            return None
        self.texts.append(said)
        choice.alike_tokens += tokens
        if self.hidden:
            return line[:end] + self.hidden
        choice.entries += tokens
        return line


def alike(line: bytes, choice: Choice, field: str, text: str, *, ids_shown: bool) -> Alike | None:
    """What events of `choice` share with `line`, which has `text` in `field`; None if that is
    unclear."""
    name = b'"%b":' % field.encode()
    stated = name + orjson.dumps(text)
    start, ids = line.find(stated), line.find(IDS)
    if start < 0 or line.count(name) != 1 or line.count(IDS) != 1:
        return None
    end, closing = start + len(stated) - 1, line.find(b"]", ids)
    if not end < ids < closing:
        return None
    middle, tail = line[end : ids + len(IDS)], line[closing:]
    hidden = b"" if ids_shown else middle[:-1] + b"null" + tail[1:]
    head = line[: start + len(name) + 1]
    return Alike(choice, choice.texts[field], head, middle, tail, hidden)


def hide_ids(line: bytes, name: bytes) -> bytes:
    """The line as it is where nobody asks for the token ids that follow `name`."""
    at = line.find(name)
    if at < 0:
        return line
    return line[: at + len(name) - 1] + b"null" + line[line.index(b"]", at) + 1 :]
