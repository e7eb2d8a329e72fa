"""Events of one stream that differ in their text and token ids only, read without parsing JSON."""

from dataclasses import dataclass

import orjson

IDS = b'"token_ids":['
"""How an event states the ids of its tokens. No text has these bytes: its quotes are escaped."""


@dataclass(frozen=True, slots=True)
class Alike:
    """The bytes that such events share. A stream may have millions, and to parse one costs more
    than to relay it."""

    field: str
    """The field of the choice, or of its delta, that has the text."""
    head: bytes
    """All before the text."""
    middle: bytes
    """All between text and token ids, from the quote that ends the text on."""
    tail: bytes
    """All behind the token ids, from the bracket that ends them on."""
    hidden: bytes
    """What takes the place of `middle`, ids and `tail`; empty: the ids are shown."""

    def read(self, line: bytes) -> tuple[bytes, str, list[int]] | None:
        """The event as the client gets it, its text and its token ids; None: it is not alike."""
        head, tail = self.head, self.tail
        if not (line.startswith(head) and line.endswith(tail)):
            return None
        end = line.find(b'"', len(head))
        if not line.startswith(self.middle, end):
            return None
        text, ids = line[len(head) : end], line[end + len(self.middle) : -len(tail)]
        if not text or b"\\" in text:  # escaped: for a parser of JSON
            return None
        try:
            known = [int(each) for each in ids.split(b",")]
            return line[:end] + self.hidden if self.hidden else line, text.decode(), known
        except ValueError:
            return None


def alike(line: bytes, field: str, text: str, *, ids_shown: bool) -> Alike | None:
    """What events share with `line`, which has `text` in `field`; None if that is unclear."""
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
    return Alike(field, line[: start + len(name) + 1], middle, tail, hidden)


def hide_ids(line: bytes, name: bytes) -> bytes:
    """The line as it is where nobody asks for the token ids that follow `name`."""
    at = line.find(name)
    if at < 0:
        return line
    return line[: at + len(name) - 1] + b"null" + line[line.index(b"]", at) + 1 :]
