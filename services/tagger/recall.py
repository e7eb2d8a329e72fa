"""What was found in requests that may come again."""

from collections import OrderedDict
from hashlib import blake2b
from typing import Generic

from foretell.length.conversation import Question
from foretell.services.tagger.models import Found


class ResultCache(Generic[Found]):
    """What the model found in the latest `size` different requests."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: OrderedDict[bytes, Found] = OrderedDict()

    @staticmethod
    def key(question: Question) -> bytes:
        """Equal for equal requests, whatever their tokens are estimated to be."""
        said = question.conversation
        texts = [question.model_name, said.system, said.prompt]
        for exchange in said.earlier:
            texts += [exchange.prompt, exchange.answer]
        figures = (said.characters, said.exchanges, said.max_tokens, said.stops)
        lengths = (*map(len, texts), *(e.answer_characters for e in said.earlier))
        whole = "".join((*texts, repr((figures, lengths))))
        return blake2b(whole.encode(errors="replace"), digest_size=16).digest()

    def get(self, key: bytes) -> Found | None:
        """None for one never seen, or too long ago."""
        if key not in self._found:
            return None
        self._found.move_to_end(key)
        return self._found[key]

    def put(self, key: bytes, found: Found) -> None:
        """Remember."""
        self._found[key] = found
        if len(self._found) > self._size:
            self._found.popitem(last=False)
