"""Packs engine snapshots into rows, and restores twins that continue from the engine's state."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.engine.batch import StepBatch as TwinBatch
from foretell.engine.forecast import Forecaster
from foretell.engine.inputs import input_rows
from foretell.engine.published import Snapshot, header_of
from foretell.engine.questions import Figures, is_certain, key_of
from foretell.engine.twin import Twin
from foretell.kernel.forecasts import START, restore
from foretell.kernel.layout import INPUT
from foretell.kernel.lengths import WIDTH
from foretell.kernel.snapshot_rows import REQUEST, SNAPSHOT, STEPS
from foretell.latency.linear import sums
from foretell.length.distribution import Row, certain, mean_of
from foretell.model import EngineConfig, EngineSnapshot, RequestState, RequestTable

_MOST_TOKENS = np.iinfo(np.int32).max

ExpectedOutput = Callable[[RequestState], float]
"""Total output tokens that a request is expected to generate, given its state."""


class PackedRows(NamedTuple):
    """The rows of a snapshot, as in `published.Snapshot`."""

    header: bytes
    requests: bytes
    inputs: bytes


def packed_rows(
    snapshot: EngineSnapshot,
    length_rows: Sequence[Row],
    waiting_cached_tokens: Sequence[int] | None = None,
) -> PackedRows:
    """Pack `snapshot` into rows.

    `length_rows` are the length distributions of the running and then the waiting requests. An
    engine looks for cached blocks only when it admits a request; `waiting_cached_tokens` are what
    the waiting requests are believed to find, if that is known.
    """
    config = snapshot.config
    runs, waits = RequestTable.of(snapshot.running), RequestTable.of(snapshot.waiting)
    running, count = len(runs), len(runs) + len(waits)
    rows = np.zeros(count, REQUEST)
    _fill_rows(rows[:running], runs, runs.cached_tokens)
    _fill_rows(rows[running:], waits, waiting_cached_tokens or waits.cached_tokens)
    # Slices are lists, which numpy reads twice as fast as protobuf's columns.
    rows["computed"][:running] = runs.computed_tokens[:]
    blocks = -(-rows["computed"][:running] // config.block_size_tokens)
    rows["blocks"][:running] = np.maximum(blocks, runs.held_blocks[:])
    rows["left"][:running] = runs.left_blocks[:]
    rows["scheduled"][:running] = runs.scheduled_tokens[:]
    rows["in_flight"][:running] = runs.in_flight_tokens[:]
    rows["older"][:running] = runs.older_tokens[:]
    inputs, contents = b"", 0
    if config.max_num_encoder_input_tokens:
        placed, known = input_rows(snapshot)
        inputs, contents = placed.tobytes(), len(known)
        rows["inputs"] = [len(each) for table in (runs, waits) for each in table.encoder_inputs]
    lengths = np.fromiter(chain.from_iterable(length_rows), np.float64, count * WIDTH)
    rows["length"] = lengths.reshape(count, WIDTH)
    tokens = rows["prompt"][running:] + rows["output"][running:]
    wanted = sum(map(config.blocks_for, tokens.tolist()))
    sure = all(map(is_certain, length_rows))
    steps = snapshot.steps_in_flight[-STEPS:]  # the twin models no more
    header = header_of(
        config,
        Figures(count, running, snapshot.free_blocks, wanted, int(sure)),
        [sums(step.shape) for step in steps],
        steps[0].started_unix_s if steps else 0.0,
        contents=contents,
        inputs=len(inputs) // INPUT.itemsize - contents,
        online=(snapshot.online_ttft_s, snapshot.usual_online_blocks),
        draft_ratios=(snapshot.drafted_ratio, snapshot.accepted_ratio),
        deferral=(snapshot.step_counter, snapshot.prefill_capacity_bound),
    )
    return PackedRows(header, rows.tobytes(), inputs)


def fill_snapshot(
    forecaster: Forecaster, index: int, snapshot: EngineSnapshot, length_rows: Sequence[Row]
) -> None:
    """Make `snapshot` the snapshot of engine `index`, with these length distributions."""
    forecaster.describe(index, snapshot.config)
    forecaster.put(index, *packed_rows(snapshot, length_rows), 0.0)
    forecaster.still_true(index, snapshot.taken_unix_s)


def _fill_rows(rows: NDArray[np.void], table: RequestTable, cached_tokens: Sequence[int]) -> None:
    rows["arrival_s"] = table.arrival_unix_s[:]
    rows["key"] = [
        key_of(foretell_id or request_id)
        for foretell_id, request_id in zip(table.foretell_id, table.request_id, strict=True)
    ]
    rows["prompt"] = table.prompt_tokens[:]
    rows["output"] = table.output_tokens[:]
    rows["max_tokens"] = np.minimum(table.max_tokens[:], _MOST_TOKENS)
    rows["priority"] = table.priority[:]
    rows["preemptions"] = table.preemptions[:]
    rows["ttft_target_s"], rows["tpot_target_s"] = table.ttft_target_s[:], table.tpot_target_s[:]
    rows["cached_tokens"] = cached_tokens[:]
    rows["adapter"] = table.adapter[:]


def restore_twin(
    snapshot: EngineSnapshot, expected: ExpectedOutput
) -> tuple[Twin, list[TwinBatch]]:
    """Return a twin that continues from `snapshot`, and its steps in flight, oldest first.

    Complete the steps in flight with `Twin.complete`.
    """
    requests = (*snapshot.running, *snapshot.waiting)
    forecaster = Forecaster()
    fill_snapshot(forecaster, 0, snapshot, [certain(0.0)] * len(requests))
    names = [request.foretell_id or request.request_id for request in requests]
    inputs, contents = input_rows(snapshot)
    twin, batches = _adopted(forecaster, snapshot.config, names, len(inputs), contents)
    for slot, request in enumerate(requests):
        twin.set_length(slot, round(expected(request)))
    return twin, batches


def twin_from(snapshot: Snapshot) -> Twin:
    """Return a twin that continues from a published snapshot. The length of each request is the
    mean of its distribution, and at least one token more than it has."""
    forecaster = Forecaster()
    forecaster.describe(0, snapshot.config)
    forecaster.put(0, snapshot.header, snapshot.requests, snapshot.inputs, 0.0)
    forecaster.still_true(0, snapshot.taken_s)
    rows = np.frombuffer(snapshot.requests, REQUEST)
    names = [f"restored {slot}" for slot in range(len(rows))]
    inputs = np.frombuffer(snapshot.inputs, INPUT)
    (header,) = np.frombuffer(snapshot.header, SNAPSHOT)
    contents = {place: place for place in range(int(header["contents"]))}
    twin, _ = _adopted(forecaster, snapshot.config, names, len(inputs), contents)
    lengths, made = rows["length"].tolist(), rows["output"].tolist()
    for slot, (length, output) in enumerate(zip(lengths, made, strict=True)):
        twin.set_length(slot, round(max(mean_of(length), output + 1)))
    return twin


def _adopted(
    forecaster: Forecaster,
    config: EngineConfig,
    names: Sequence[str],
    inputs: int,
    contents: Mapping[int, int],
) -> tuple[Twin, list[TwinBatch]]:
    """A twin of the forecaster's first engine with these request ids, and its steps in flight."""
    scratch = forecaster.scratch
    restore(forecaster.snapshots, 0, scratch)
    return Twin.adopt(
        config,
        scratch.records[START],
        scratch.sequences[START],
        scratch.entries[START],
        scratch.inputs[START, :inputs],
        dict(enumerate(names)),
        contents,
    )
