"""Multimodal inputs of requests as the rows of `kernel.layout.INPUT`."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from foretell.engine.sequence import Sequence as EngineSequence
from foretell.kernel.layout import INPUT, NONE
from foretell.kernel.live import Live
from foretell.model import CachedInput, EncoderInput, EngineSnapshot, RequestTable

_FIRST_CAPACITY = 64
_FIELDS = ("offset", "length", "first_embed", "end_embed", "held")


class Inputs:
    """Allocates the rows of `Live.inputs`: the inputs of a twin's sequences, and their contents."""

    def __init__(self, contents: Mapping[int, int] | None = None, used: int = 0) -> None:
        """`contents` maps contents to their rows; the first `used` rows are taken."""
        self._contents = dict(contents or {})
        self._used = used

    def place(self, live: Live, seq: EngineSequence) -> Live:
        """Return the engine's arrays with rows for the inputs of `seq`; set `first_input` in its
        row."""
        if not seq.inputs:
            return live
        if self._used + 2 * len(seq.inputs) > len(live.inputs):
            live = self._compacted(live, seq)
        for each in seq.inputs:
            if each.content not in self._contents:
                self._contents[each.content] = self._used
                live.inputs["embeds"][self._used] = each.embeds
                self._used += 1
        end = self._used + len(seq.inputs)
        _fill(live.inputs[self._used : end], seq.inputs, self._contents)
        seq.row["first_input"], self._used = self._used, end
        return live

    def cached(self, live: Live) -> tuple[CachedInput, ...]:
        """The entries of the encoder cache, in the order of `EngineSnapshot.encoder_cache`."""
        rows, keys = live.inputs, {place: key for key, place in self._contents.items()}
        order, place = [], int(live.records["at"]["engine"]["encoder_head"][0])
        while place != NONE:
            order.append(place)
            place = int(rows["next"][place])
        order += np.flatnonzero((rows["cached"] > 0) & (rows["refs"] > 0)).tolist()
        return tuple(CachedInput(keys[place], int(rows["embeds"][place])) for place in order)

    def held(self, live: Live, seq: EngineSequence) -> tuple[EncoderInput, ...]:
        """The inputs of `seq`, with `held` as of now."""
        first = int(seq.row["first_input"])
        held = live.inputs["held"][first : first + len(seq.inputs)].tolist()
        return tuple(
            each._replace(held=holds) for each, holds in zip(seq.inputs, held, strict=True)
        )

    def _compacted(self, live: Live, new_request: EngineSequence) -> Live:
        """Return the engine's arrays without rows that are neither cached nor of any sequence, and
        with room for the rows of `new_request`, which has none yet."""
        old, moved = live.inputs, np.full(len(live.inputs) + 1, NONE)  # the last maps NONE to NONE
        living = [
            row
            for slot, row in enumerate(live.sequences)
            if row["inputs"] and slot != new_request.slot
        ]
        places = [np.arange(row["inputs"]) + row["first_input"] for row in living]
        used = {content for place in places for content in old["content"][place].tolist()}
        self._contents = {
            key: place
            for key, place in self._contents.items()
            if place in used or old["cached"][place]
        }
        kept = np.concatenate([np.array(list(self._contents.values()), int), *places])
        moved[kept] = np.arange(len(kept))
        wanted = len(kept) + 2 * len(new_request.inputs)
        rows = np.zeros(max(_FIRST_CAPACITY, 2 * wanted), INPUT)
        rows[: len(kept)] = old[kept]
        for name in ("content", "next", "previous"):
            rows[name][: len(kept)] = moved[rows[name][: len(kept)]]
        engine = live.records["at"]["engine"]
        for name in ("encoder_head", "encoder_tail"):
            engine[name] = moved[engine[name]]
        for row in living:
            row["first_input"] = moved[row["first_input"]]
        self._contents = {key: int(moved[place]) for key, place in self._contents.items()}
        self._used = len(kept)
        return live._replace(inputs=rows)


def input_rows(snapshot: EngineSnapshot) -> tuple[NDArray[np.void], dict[int, int]]:
    """The rows of `layout.INPUT` of a snapshot, and the row of each content."""
    tables = map(RequestTable.of, (snapshot.running, snapshot.waiting))
    inputs = [each for table in tables for row in table.encoder_inputs for each in row]
    embeds = dict(snapshot.encoder_cache)
    for each in inputs:
        embeds.setdefault(each.content, each.embeds)
    contents = {content: place for place, content in enumerate(embeds)}
    rows = np.zeros(len(contents) + len(inputs), INPUT)
    rows["embeds"][: len(contents)] = list(embeds.values())
    rows["cached"][: len(snapshot.encoder_cache)] = 1
    _fill(rows[len(contents) :], inputs, contents)
    return rows, contents


def _fill(
    rows: NDArray[np.void], inputs: Sequence[EncoderInput], contents: Mapping[int, int]
) -> None:
    for name in _FIELDS:
        rows[name] = [getattr(each, name) for each in inputs]
    rows["content"] = [contents[each.content] for each in inputs]
