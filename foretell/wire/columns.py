"""Tables of numbers by column, so that writer and reader need not have the same columns."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from foretell.kernel.compiled import fill_column
from foretell.v1 import predictor_pb2
from foretell.wire.common import WireError

_KINDS = (np.dtype("<f8"), np.dtype("<i8"), np.dtype("<i4"))  # by `Column.Kind`


class Place(NamedTuple):
    """Where a column lies in rows: its kind, its first byte in a row, its numbers in each row, and
    the bytes from row to row."""

    kind: int
    at: int
    width: int
    stride: int


@lru_cache(maxsize=8)
def _places(dtype: np.dtype[np.void]) -> dict[str, Place]:
    found = {}
    for name, (own, at, *_) in (dtype.fields or {}).items():
        width = own.itemsize // own.base.itemsize
        found[name] = Place(_KINDS.index(own.base), at, width, dtype.itemsize)
    return found


def table_to_proto(
    rows: bytes, dtype: np.dtype[np.void], names: Sequence[str] = ()
) -> predictor_pb2.Table:
    """Columns `names` (default: all) of rows of `dtype`; columns of zeros are left out."""
    table = predictor_pb2.Table(rows=len(rows) // dtype.itemsize)
    if not rows:
        return table
    places, numbers = _places(dtype), [np.frombuffer(rows, kind) for kind in _KINDS]
    for name in names or places:
        kind, at, width, stride = places[name]
        size = _KINDS[kind].itemsize
        own = numbers[kind].reshape(table.rows, stride // size)
        values = own[:, at // size : at // size + width].tobytes()
        if values.count(0) < len(values):
            table.columns.add(name=name, kind=kind, width=width, values=values)
    return table


def table_from_proto(table: predictor_pb2.Table, dtype: np.dtype[np.void], most: int) -> bytearray:
    """Rows of `dtype`: columns that it does not have are ignored, missing columns are 0.

    Raises `WireError` for more rows than `most`, and for invalid columns.
    """
    if table.rows > most:
        raise WireError("count")
    rows, places = bytearray(table.rows * dtype.itemsize), _places(dtype)
    for column in table.columns:
        place = places.get(column.name)
        if place is not None and (why := fill_column(rows, *place, column.kind, column.values)):
            raise WireError(why)
    return rows
