"""The content of requests as a prefix cache sees it."""

from collections.abc import Iterable
from hashlib import blake2b

Segment = tuple[str, int]
"""The name of a run of tokens, and its length. Token j of a name is always the same token, and no
other name has it."""


class Content:
    """Chained hashes of a request's blocks: equal hashes mean equal tokens from the first one on.

    Hashes are computed lazily. The output follows the prompt as an endless segment, so every block
    has a hash. The caller must know whether a block's tokens exist yet.
    """

    __slots__ = (
        "_block_size",
        "_hashes",
        "_lookahead",
        "_offset",
        "_output",
        "_prompt",
        "_salt",
        "_segment",
    )

    def __init__(
        self,
        prompt: Iterable[Segment],
        output: str,
        block_size_tokens: int,
        salt: str = "",
        lookahead_tokens: int = 0,
    ) -> None:
        """Blocks with different `salt` are never equal.

        The `lookahead_tokens` tokens behind a block are part of its content, too.
        """
        self._lookahead = lookahead_tokens
        self._salt = salt.encode()
        self._prompt = tuple(prompt)
        self._output = output
        self._block_size = block_size_tokens
        self._hashes: list[bytes] = []
        # Where the next block to be hashed begins.
        self._segment = 0
        self._offset = 0

    @property
    def shared_blocks(self) -> int | None:
        """The number of leading blocks that other requests may share; only these need hashes. None:
        all."""
        return None

    def block_hash(self, index: int) -> bytes:
        """The hash of the block that begins at token `index * block_size`."""
        while len(self._hashes) <= index:
            parent = self._hashes[-1] if self._hashes else self._salt
            tokens = repr(self._next_tokens(self._block_size)).encode()
            if self._lookahead:
                here = self._segment, self._offset
                tokens += repr(self._next_tokens(self._lookahead)).encode()
                self._segment, self._offset = here
            self._hashes.append(blake2b(parent + tokens, digest_size=16).digest())
        return self._hashes[index]

    def _next_tokens(self, missing: int) -> list[tuple[str, int, int]]:
        """The next `missing` tokens as runs (segment, first, count)."""
        runs: list[tuple[str, int, int]] = []
        while missing:
            in_prompt = self._segment < len(self._prompt)
            name, length = self._prompt[self._segment] if in_prompt else (self._output, 0)
            count = min(missing, length - self._offset) if in_prompt else missing
            if count:
                runs.append((name, self._offset, count))
            missing -= count
            self._offset += count
            if in_prompt and self._offset == length:
                self._segment, self._offset = self._segment + 1, 0
        return runs
