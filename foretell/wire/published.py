"""Conversion between what predictors publish and `proto/foretell/v1/predictor.proto`.

It needs numpy and the compiled kernel; the rest of `foretell.wire` does not, except `columns`.
"""

from collections.abc import Callable
from math import isfinite
from operator import attrgetter

import numpy as np

from foretell import wire
from foretell.engine.published import (
    MOST_INPUTS,
    MOST_REQUESTS,
    Published,
    Snapshot,
    SnapshotError,
    arrivals_of,
    check,
    check_state,
    header_of,
    step_time_of,
)
from foretell.engine.questions import Figures, packed
from foretell.kernel.compiled import are_certain
from foretell.kernel.layout import INPUT
from foretell.kernel.snapshot_rows import ARRIVAL, REQUEST, SNAPSHOT
from foretell.kernel.step_time import StepTime, Sums
from foretell.model import BatchShape
from foretell.v1 import predictor_pb2
from foretell.wire.columns import table_from_proto, table_to_proto

VERSION = 1
"""Version of the snapshots that are written; the previous and the next one are read, too."""
_sums_of = attrgetter(*Sums._fields)
_INPUT = ("content", "offset", "length", "first_embed", "end_embed", "held", "embeds", "cached")

ProfileTables = Callable[[str], StepTime]
"""Returns the tables of a GPU profile that is given as JSON; ValueError for anything else."""


def published_to_proto(
    message: Published, snapshot: predictor_pb2.Snapshot | None, profile: str = ""
) -> predictor_pb2.Published:
    """The message with its snapshot, which `snapshot_to_proto` has converted.

    `profile`: JSON of the GPU profile whose tables the snapshot's step times need.
    """
    published = predictor_pb2.Published(
        sent_unix_s=message.sent_s,
        heard_unix_s=message.heard_s,
        snapshot=snapshot,
        all_prefixes=message.all_prefixes,
        cached_prefixes=message.cached_prefixes,
        evicted_prefixes=message.evicted_prefixes,
        silent_s=message.silent_s,
    )
    if snapshot is not None:
        published.snapshot.notices, published.snapshot.profile = message.notices, profile
    return published


class MessageReader:
    """Reads the messages of one stream, in their order."""

    version = VERSION

    def __init__(self, tables_of: ProfileTables, no_tables: StepTime) -> None:
        self._tables_of = tables_of
        self._tables = no_tables

    def read(self, message: predictor_pb2.Published) -> Published:
        """Raises `SnapshotError` for a message of a version that is neither `VERSION` nor next to
        it, or with impossible values."""
        times = message.sent_unix_s, message.heard_unix_s, message.silent_s
        if not all(map(isfinite, times)) or message.silent_s < 0.0:
            raise SnapshotError("time")
        snapshot = None
        if message.HasField("snapshot"):
            snapshot = self._snapshot(message.snapshot, message.sent_unix_s)
        return Published(
            message.sent_unix_s,
            message.heard_unix_s,
            snapshot,
            message.all_prefixes,
            tuple(message.cached_prefixes),
            tuple(message.evicted_prefixes),
            message.snapshot.notices,
            message.silent_s,
        )

    def _snapshot(self, message: predictor_pb2.Snapshot, sent_s: float) -> Snapshot:
        if abs(message.version - self.version) > 1:
            raise SnapshotError("version")
        times = (message.taken_unix_s, message.step_began_unix_s, message.dispatch_delay_s)
        if not all(map(isfinite, times)) or message.dispatch_delay_s < 0:
            raise SnapshotError("time")
        if len(message.step_error) != 2:
            raise SnapshotError("step_time")
        tables = self._tables
        try:
            config = wire.config_from_proto(message.config)
            if message.profile:
                tables = self._tables_of(message.profile)
            drafts = wire.draft_ratios(message.drafted_ratio)
            accepted = wire.draft_ratios(message.accepted_ratio)
        except ValueError as error:
            raise SnapshotError("config") from error
        try:
            requests = table_from_proto(message.requests, REQUEST, MOST_REQUESTS)
            inputs = table_from_proto(message.inputs, INPUT, MOST_INPUTS)
            reservations, expected = (
                table_from_proto(table, ARRIVAL, MOST_REQUESTS)
                for table in (message.reservations, message.expected)
            )
        except wire.WireError as error:
            raise SnapshotError(str(error)) from error
        own_inputs = len(inputs) // INPUT.itemsize - message.contents
        if own_inputs < 0:
            raise SnapshotError("inputs")
        rows, certain = message.requests.rows, int(are_certain(requests))
        blocks = message.free_blocks, message.waiting_blocks
        figures = Figures(rows, message.running, *blocks, certain)
        shapes = list(map(_sums_of, message.steps_in_flight))
        online = message.online_ttft_s, message.usual_online_blocks
        check_state(config, figures, shapes, online)
        header = header_of(
            config,
            figures,
            shapes,
            min(message.step_began_unix_s, sent_s),
            contents=message.contents,
            inputs=own_inputs,
            online=online,
            draft_ratios=(drafts, accepted),
            deferral=(message.step_counter, message.prefill_capacity_bound),
        )
        snapshot = Snapshot(
            instance_id=message.instance_id,
            config=config,
            taken_s=message.taken_unix_s,
            header=header,
            requests=bytes(requests),
            inputs=bytes(inputs),
            reservations=arrivals_of(reservations, sent_s),
            expected=arrivals_of(expected),
            dispatch_delay_s=message.dispatch_delay_s,
            step_time=step_time_of(message.step_time, tables),
            step_error=(message.step_error[0], message.step_error[1]),
            calibration_steps=message.calibration_steps,
        )
        check(snapshot)
        self._tables = tables
        return snapshot


def snapshot_to_proto(snapshot: Snapshot) -> predictor_pb2.Snapshot:
    """The message for a snapshot, in one pass over each column."""
    (header,) = np.frombuffer(snapshot.header, SNAPSHOT)
    _, running, free_blocks, waiting_blocks, _ = header["figures"].tolist()
    engine, steps = header["engine"], int(header["steps"])
    return predictor_pb2.Snapshot(
        version=VERSION,
        instance_id=snapshot.instance_id,
        config=wire.config_to_proto(snapshot.config),
        taken_unix_s=snapshot.taken_s,
        running=running,
        free_blocks=free_blocks,
        waiting_blocks=waiting_blocks,
        steps_in_flight=[
            wire.shape_to_proto(BatchShape(*shape)) for shape in header["shapes"][:steps].tolist()
        ],
        step_began_unix_s=float(header["begun_s"]),
        online_ttft_s=float(engine["online_ttft_s"]),
        usual_online_blocks=float(engine["usual_online_blocks"]),
        step_counter=int(engine["step_counter"]),
        prefill_capacity_bound=bool(engine["prefill_capacity_bound"]),
        drafted_ratio=np.trim_zeros(engine["drafted_ratio"], "b").tolist(),
        accepted_ratio=np.trim_zeros(engine["accepted_ratio"], "b").tolist(),
        requests=table_to_proto(snapshot.requests, REQUEST),
        reservations=table_to_proto(packed(snapshot.reservations), ARRIVAL),
        expected=table_to_proto(packed(snapshot.expected), ARRIVAL),
        dispatch_delay_s=snapshot.dispatch_delay_s,
        step_time=snapshot.step_time.coefficients.tolist(),
        step_error=snapshot.step_error,
        calibration_steps=snapshot.calibration_steps,
        inputs=table_to_proto(snapshot.inputs, INPUT, _INPUT),
        contents=int(header["contents"]),
    )
