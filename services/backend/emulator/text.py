"""The text of an emulated engine: each word follows from the words before it.

The next word is a hash of all words so far, prompt and answer alike. So the same prompt gives the
same text on every engine, and an answer that one engine began can be continued by another.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b

TOKEN = re.compile(r"\w+|[^\w\s]")
"""What a token is: a word or a punctuation mark."""

# One per value of a byte.
_WORD_LIST = """
able about above across act add after again age air all also always and animal answer any
appear are area arm as ask at autumn away back ball base be bear beat bed been before began
begin behind best better between big bird black blue board boat body book both bottom box boy
bread bring brought build busy but by call came can car care carry case cause cell center
certain chance change chart check child circle city class clean clear clock close cloud coast
cold color come common compare complete contain corn correct count country course cover cross
cry cut dark day decide deep develop differ direct distant do does dog done door down draw
dream drive dry during each early earth ease east eat edge egg else end enough equal even ever
every example eye face fact fall family far farm fast father feel feet few field figure fill
find fine finger finish fire first fish five floor flow fly follow food foot for force forest
form found four free fresh friend from front full game garden gave general get girl give glass
go gold gone good got govern grand grass great green ground group grow had half hand happen
hard has have head hear heart heat heavy held help here high hill history hold home hope horse
hot hour house how hundred idea if inch instant interest island just keep kind king know lake
land language large last late laugh lead learn leave left less let letter life light line list
listen little
"""
WORDS = tuple(_WORD_LIST.split())


def tokenize(text: str) -> list[str]:
    """The tokens of `text`: words and punctuation marks; space alone is one token."""
    return TOKEN.findall(text) or ([text] if text else [])


def text_key(seed: int | None, choice: int) -> bytes:
    """What the text depends on besides the prompt; empty for the first choice without a seed."""
    if seed is None and choice == 0:
        return b""
    return f"{'' if seed is None else seed}/{choice}".encode()


class Continuation:
    """The endless text that follows `tokens`; `key` is at most 64 bytes."""

    def __init__(self, tokens: Sequence[str], key: bytes = b"") -> None:
        self._hash = blake2b(" ".join(tokens).encode(), digest_size=8, key=key)

    def next_word(self) -> str:
        """The next token, without the space before it."""
        word = WORDS[self._hash.digest()[0]]
        self._hash.update(b" " + word.encode())
        return word
