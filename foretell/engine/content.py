"""The content of requests, as far as a prefix cache looks at it."""

from collections.abc import Iterable
from hashlib import blake2b

Segment = tuple[str, int]
"""A named run of tokens and its length. Token j of a segment is the same wherever the name is
used, and equal to no other token."""


class Content:
    """Chained hashes of a request's blocks: equal hashes mean equal tokens from the first one on.

    Hashes are computed when first asked for. Behind the prompt comes the output, a segment without
    end, so every block has a hash; whether its tokens exist yet is the caller's knowledge.
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
        """Equal tokens of different `salt` are not equal.

        `lookahead_tokens` behind a block are part of its content, too.
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
        """Blocks from this one on are no other request's, and are asked for no hash; None: any may
        be."""
        return None

    def block_hash(self, index: int) -> bytes:
        """The hash of the block of tokens `index * block_size` to
        `(index + 1) * block_size - 1`."""
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
