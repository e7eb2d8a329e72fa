"""Tables of numbers by column, so that writer and reader need not have the same ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.v1 import predictor_pb2
from foretell.wire.error import WireError

_KINDS = (np.dtype("<f8"), np.dtype("<i8"), np.dtype("<i4"))  # by `Column.Kind`
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


def table_to_proto(rows: NDArray[np.void], names: Sequence[str]) -> predictor_pb2.Table:
    """The columns `names` of a structured array; those of zeros are left out."""
    table = predictor_pb2.Table(rows=len(rows))
    for name in names if len(rows) else ():
        values = rows[name]
        if values.any():
            width = values.shape[1] if values.ndim > 1 else 1
            kind = _NUMBERS[values.dtype]
            table.columns.add(name=name, kind=kind, width=width, values=values.tobytes())
    return table


def table_from_proto(
    table: predictor_pb2.Table, dtype: np.dtype[np.void], most: int
) -> NDArray[np.void]:
    """Rows of `dtype`: columns that it does not have are ignored, those that are missing are 0.

    Raises `WireError` for more rows than `most`, and for columns that are none.
    """
    if table.rows > most:
        raise WireError("count")
    rows = np.zeros(table.rows, dtype)
    for column in table.columns:
        if column.name in dtype.fields:  # type: ignore[operator]
            _fill(rows[column.name], column)
    return rows


def _fill(own: NDArray[Any], column: predictor_pb2.Column) -> None:
    if not 0 <= column.kind < len(_KINDS):
        raise WireError("size")
    kind = _KINDS[column.kind]
    if len(column.values) != own.size * kind.itemsize:
        raise WireError("size")
    values = np.frombuffer(column.values, kind).reshape(own.shape)
    if values.dtype != own.dtype:
        if values.dtype.kind != own.dtype.kind:
            raise WireError("size")
        bounds = np.iinfo(own.dtype)  # of an integer that another version keeps longer or shorter
        if values.size and not bounds.min <= values.min() <= values.max() <= bounds.max:
            raise WireError(column.name)
    own[...] = values
