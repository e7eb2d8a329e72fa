"""Counts the tokens of prompts."""

from pathlib import Path
from typing import TYPE_CHECKING

from foretell.length.prompt import PRIOR_TOKENS_PER_MESSAGE
from foretell.openai.parsing import ApiRequest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

COUNTED_CHARS = 65_536
"""Most characters that are tokenized, so that a long text does not block the event loop."""


class PromptCounter:
    """Counts text with a `tokenizer.json`; without one it counts nothing. It adds a constant per
    message for the chat template, and assumes that a long text continues like its beginning."""

    def __init__(self, path: str) -> None:
        self._tokenizer: Tokenizer | None = None
        if not path:
            return
        file = Path(path)
        if file.is_dir():
            file = file / "tokenizer.json"
        if not file.is_file():
            raise SystemExit(f"tokenizer: {file} does not exist")
        import tokenizers  # noqa: PLC0415 - heavy, and seldom needed

        self._tokenizer = tokenizers.Tokenizer.from_file(str(file))

    def count(self, request: ApiRequest) -> int:
        """Prompt tokens of `request`; 0 when they cannot be counted."""
        if self._tokenizer is None or not request.text:
            return 0
        head = request.text[:COUNTED_CHARS]
        tokens = len(self._tokenizer.encode(head).ids) * len(request.text) / len(head)
        return round(tokens + PRIOR_TOKENS_PER_MESSAGE * len(request.messages))
