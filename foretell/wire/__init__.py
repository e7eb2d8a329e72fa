"""Conversion between the library's data types and the messages of `proto/foretell/v1`.

What predictors publish is converted in `wire.published`, which needs numpy and the compiled kernel.
"""

from foretell.wire.common import WireError
from foretell.wire.conversations import (
    conversation_from_proto,
    conversation_to_proto,
    kind_from_proto,
    kind_to_proto,
)
from foretell.wire.engine import (
    LONGEST_APPROXIMATION,
    LONGEST_REASON,
    MOST_APPROXIMATIONS,
    checked_reason,
    config_from_proto,
    config_to_proto,
    draft_ratios,
    encoder_inputs_to_proto,
    shape_to_proto,
    snapshot_from_proto,
    snapshot_to_proto,
    steps_to_proto,
)
from foretell.wire.requests import (
    ended_to_proto,
    length_from_proto,
    length_to_proto,
    request_from_proto,
    request_to_proto,
)

__all__ = [
    "LONGEST_APPROXIMATION",
    "LONGEST_REASON",
    "MOST_APPROXIMATIONS",
    "WireError",
    "checked_reason",
    "config_from_proto",
    "config_to_proto",
    "conversation_from_proto",
    "conversation_to_proto",
    "draft_ratios",
    "encoder_inputs_to_proto",
    "ended_to_proto",
    "kind_from_proto",
    "kind_to_proto",
    "length_from_proto",
    "length_to_proto",
    "request_from_proto",
    "request_to_proto",
    "shape_to_proto",
    "snapshot_from_proto",
    "snapshot_to_proto",
    "steps_to_proto",
]
