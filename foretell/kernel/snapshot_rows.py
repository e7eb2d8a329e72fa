"""Snapshots of engines: what is known of them from outside, as rows of numbers.

A snapshot shows an engine as last published: a header, and a row for each of its requests, first
those that run, in the order of admission, then those that wait, in the order in which they will be
admitted. `engine.snapshots` fills it from a published snapshot, `live.h` from a simulated
engine. Both say the same, and `forecasts.h` predicts from either. A row refers to nothing
outside its snapshot, so a snapshot can be copied, kept and sent as bytes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.layout import ENGINE, check_rows
from foretell.kernel.lengths import WIDTH

REQUEST = np.dtype(
    [
        ("length", np.float64, (WIDTH,)),  # what is believed of its output length
        ("arrival_s", np.float64),
        ("ttft_target_s", np.float64),  # 0: none
        ("tpot_target_s", np.float64),
        ("key", np.int64),  # stands for the request in draws; the same in every snapshot
        ("prompt", np.int32),
        ("output", np.int32),  # generated and known
        ("max_tokens", np.int32),  # 0: no limit
        ("computed", np.int32),  # KV entries, those of scheduled steps included
        ("blocks", np.int32),  # of each KV cache group, that hold these
        ("left", np.int32),  # the first of them that local attention has left behind
        ("cached_tokens", np.int32),  # of whoever waits: as is believed, others: as was found
        ("priority", np.int32),
        ("preemptions", np.int32),
        ("scheduled", np.int32),  # tokens that the newest step in flight computes
        ("in_flight", np.int32),  # output tokens that are not known yet, with async scheduling
        ("adapter", np.int32),  # its LoRA adapter; 0: none
        ("inputs", np.int32),  # multimodal inputs of its prompt
        ("older", np.int32),  # tokens that the step in flight before the newest computes; 0: untold
    ],
    align=True,
)
"""One request in an engine."""

REQUESTS, RUNNING, FREE_BLOCKS, WAITING_BLOCKS, CERTAIN = range(5)
"""Places in `SNAPSHOT.figures`: requests, those of them that run, free KV blocks, blocks that those
who wait need, and whether the output lengths of all are certain (1) or not (0)."""
FIGURES = 5

STEPS, SHAPE = 2, 6
"""Most steps in flight, and the numbers that describe one: the fields of `model.BatchShape`."""

SNAPSHOT = np.dtype(
    [
        ("engine", ENGINE),  # the configuration; the counters are not looked at
        ("version", np.int64),  # another number, above 0, for every change of the snapshot
        ("figures", np.int64, (FIGURES,)),
        ("steps", np.int64),  # steps in flight
        ("shapes", np.int64, (STEPS, SHAPE)),  # of the steps in flight, the oldest first
        ("begun_s", np.float64),  # when the oldest step in flight began
        ("known_s", np.float64),  # until when nothing happened but what the snapshot shows
        ("contents", np.int64),  # contents of multimodal inputs that are cached or wanted
        ("inputs", np.int64),  # inputs of all requests
    ],
    align=True,
)
"""The header of a snapshot."""

ARRIVAL = np.dtype(
    [
        ("length", np.float64, (WIDTH,)),
        ("at_s", np.float64),  # when it joins the queue
        ("every_s", np.float64),  # from one of its sequences to the next one
        ("ttft_target_s", np.float64),  # 0: none
        ("tpot_target_s", np.float64),
        ("prompt", np.int64),
        ("max_tokens", np.int64),  # 0: no limit
        ("priority", np.int64),
        ("cached_tokens", np.int64),  # of its prompt, as is believed
        ("key", np.int64),  # of its first sequence; the next one's is 1 higher
        ("sequences", np.int64),
    ],
    align=True,
)
"""A request on its way to an engine."""

check_rows(Request=REQUEST, Snapshot=SNAPSHOT, Arrival=ARRIVAL)


class Snapshots(NamedTuple):
    """The snapshots of m engines, each with room for so many requests."""

    headers: NDArray[np.void]
    """(m,) of `SNAPSHOT`."""
    requests: NDArray[np.void]
    """(m, most requests) of `REQUEST`; `figures` says how many of them are in use."""
    inputs: NDArray[np.void]
    """(m, most inputs) of `layout.INPUT`: the contents, those of them that are cached in the order
    in which they would be dropped, then the inputs of the requests, in their order."""
