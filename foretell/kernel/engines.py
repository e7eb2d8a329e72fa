"""Many engines in one call, each found by the addresses of its arrays.

Handing an array over to compiled code costs 0.3 us, and an engine has a dozen: more than a step of
it takes. So a row of `PLACED` says where an engine's arrays lie, and all engines are handed over as
one array. Whoever writes a row keeps the arrays alive and writes it anew when one is replaced.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array
from numpy.typing import NDArray

from foretell.kernel.jit import compiled
from foretell.kernel.layout import Record
from foretell.kernel.live import Live, advance, publish
from foretell.kernel.pictures import Pictures
from foretell.kernel.step_time import StepTime
from foretell.kernel.tables import LAYOUT_WIDTH, TABLES

AT = np.dtype([("address", np.int64), ("size", np.int64)])
"""Address and number of items of a contiguous array; one of more dimensions counts as flat."""

_MODEL = ("coefficients", "values", "layout")
PLACED = np.dtype(
    [(name, AT) for name in Live._fields]
    + [("model", [(name, AT) for name in _MODEL])]
    + [
        ("max_num_scheduled_tokens", np.int64),  # the limits that every step is checked against
        ("max_num_seqs", np.int64),
    ]
)
"""The addresses of the arrays of one engine's `Live` and of its step-time model."""


class Engines(NamedTuple):
    """The m engines of a cluster."""

    placed: NDArray[np.void]
    """(m,): rows of `PLACED`."""
    ends_s: NDArray[np.float64]
    """(m,): the end of the oldest step in flight; infinite where there is none."""
    changes: NDArray[np.int64]
    """(m,): the number of changes of each engine's state."""
    changed_s: NDArray[np.float64]
    """(m,): the time of the latest change."""
    like: Live
    """Arrays of the same types as every engine's; their content does not matter."""
    outcome: NDArray[np.int64]
    """(3,): the engine that made the latest step, and the outcome that `live.advance` filled in."""


def _array_at(
    context: Any, builder: Any, signature: Any, arguments: Any
) -> Any:  # pragma: no cover - runs while compiling
    kind = signature.return_type
    array = make_array(kind)(context, builder)
    size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    item = context.get_constant(types.intp, size)
    populate_array(
        array,
        data=builder.inttoptr(arguments[0], array.data.type),
        shape=cgutils.pack_array(builder, [arguments[1]]),
        strides=cgutils.pack_array(builder, [item]),
        itemsize=item,
        meminfo=None,
    )
    return array._getvalue()


@intrinsic  # type: ignore[untyped-decorator]
def array_at(context: Any, address: Any, size: Any, like: Any) -> Any:
    """The contiguous array of `size` items at `address`, of the same type as `like`.

    References to it are not counted.
    """
    return like(types.int64, types.int64, like), _array_at


@compiled
def live_of(engines: Engines, index: int) -> Live:
    """The arrays of one engine."""
    at, like = engines.placed[index], engines.like
    return Live(
        array_at(at.records.address, at.records.size, like.records),
        array_at(at.sequences.address, at.sequences.size, like.sequences),
        array_at(at.running.address, at.running.size, like.running),
        array_at(at.blocks.address, at.blocks.size, like.blocks),
        array_at(at.places.address, at.places.size, like.places),
        array_at(at.first_with.address, at.first_with.size, like.first_with),
        array_at(at.inputs.address, at.inputs.size, like.inputs),
        array_at(at.older.address, at.older.size, like.older),
        array_at(at.newer.address, at.newer.size, like.newer),
        array_at(at.beliefs.address, at.beliefs.size, like.beliefs),
    )


@compiled
def model_of(engines: Engines, at: Record) -> StepTime:
    """The step-time model whose arrays lie `at`."""
    layout = array_at(at.layout.address, at.layout.size, engines.outcome)
    return StepTime(
        array_at(at.coefficients.address, at.coefficients.size, engines.ends_s),
        array_at(at.values.address, at.values.size, engines.ends_s),
        layout.reshape(TABLES, LAYOUT_WIDTH),
    )


@compiled
def step(engines: Engines, index: int, now_s: float) -> None:
    """Apply `live.advance` to one engine: its oldest step ends, and others are scheduled."""
    at, live, outcome = engines.placed[index], live_of(engines, index), engines.outcome
    outcome[0] = index
    model = model_of(engines, at.model)
    limits = at.max_num_scheduled_tokens, at.max_num_seqs
    advance(live, model, now_s, True, 2, limits[0], limits[1], outcome[1:])
    engines.changes[index] += 1
    engines.changed_s[index] = now_s
    clock = live.records[0].at.clock
    engines.ends_s[index] = clock.first_end_s if clock.in_flight > 0 else np.inf


@compiled
def run(engines: Engines, until_s: float, each: bool) -> bool:
    """End steps in their order, up to and including `until_s`; True when it stopped at one before.

    It stops at a step that ends a request, or with `each` at any step; `outcome` tells at which.
    AssertionError where an invariant is broken.
    """
    while True:
        first, first_s = 0, np.inf
        for index in range(len(engines.ends_s)):
            if engines.ends_s[index] < first_s:
                first, first_s = index, engines.ends_s[index]
        if first_s > until_s or first_s == np.inf:
            return False
        step(engines, first, first_s)
        if each or engines.outcome[1] > 0:
            return True


@compiled
def publish_all(
    engines: Engines, pictures: Pictures, indices: NDArray[np.int64], now_s: float
) -> None:
    """`live.publish` of each engine in `indices`; its picture has the same index."""
    for index in indices:
        publish(live_of(engines, index), pictures, index, now_s)
