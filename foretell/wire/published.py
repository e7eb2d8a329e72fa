"""The bridge between what predictors publish and `proto/foretell/v1/predictor.proto`.

It needs numpy and the compiled kernel, which the rest of `foretell.wire` does not.
"""

from collections.abc import Callable
from math import isfinite

from foretell import wire
from foretell.engine.published import LAYOUT, PictureError, Published, PublishedPicture
from foretell.kernel.step_time import StepTime
from foretell.v1 import predictor_pb2

ProfileTables = Callable[[str], StepTime]
"""The tables of a GPU profile, given as JSON; ValueError where it is none."""


def published_to_proto(message: Published, profile: str = "") -> predictor_pb2.Published:
    """`profile`: JSON of the one whose tables the picture's step times need."""
    picture = message.picture
    return predictor_pb2.Published(
        sent_unix_s=message.sent_s,
        heard_unix_s=message.heard_s,
        picture=None if picture is None else _picture_to_proto(picture, profile),
        all_prefixes=message.all_prefixes,
        cached_prefixes=message.cached_prefixes,
        evicted_prefixes=message.evicted_prefixes,
        silent_s=message.silent_s,
    )


def published_from_proto(message: predictor_pb2.Published, tables_of: ProfileTables) -> Published:
    """Raises `PictureError` for a message of another version, or one that was torn."""
    times = message.sent_unix_s, message.heard_unix_s, message.silent_s
    if not all(map(isfinite, times)) or message.silent_s < 0.0:
        raise PictureError("time")
    picture = None
    if message.HasField("picture"):
        picture = _picture_from_proto(message.picture, tables_of)
    return Published(
        message.sent_unix_s,
        message.heard_unix_s,
        picture,
        message.all_prefixes,
        tuple(message.cached_prefixes),
        tuple(message.evicted_prefixes),
        message.silent_s,
    )


def _picture_to_proto(picture: PublishedPicture, profile: str) -> predictor_pb2.Picture:
    return predictor_pb2.Picture(
        layout=LAYOUT,
        checksum=picture.checksum,
        notices=picture.notices,
        instance_id=picture.instance_id,
        config=wire.config_to_proto(picture.config),
        taken_unix_s=picture.taken_s,
        running=picture.running,
        free_blocks=picture.free_blocks,
        waiting_blocks=picture.waiting_blocks,
        steps_in_flight=list(map(wire.shape_to_proto, picture.shapes)),
        step_began_unix_s=picture.step_began_s,
        online_ttft_s=picture.online_ttft_s,
        usual_online_blocks=picture.usual_online_blocks,
        drafted_ratio=picture.drafted_ratio,
        accepted_ratio=picture.accepted_ratio,
        requests=picture.requests,
        reservations=picture.reservations,
        expected=picture.expected,
        dispatch_delay_s=picture.dispatch_delay_s,
        step_time=picture.step_time,
        step_error=picture.step_error,
        calibration_steps=picture.calibration_steps,
        profile=profile,
        inputs=picture.inputs,
        contents=picture.contents,
    )


def _picture_from_proto(
    message: predictor_pb2.Picture, tables_of: ProfileTables
) -> PublishedPicture:
    if message.layout != LAYOUT:
        raise PictureError("version")
    times = (message.taken_unix_s, message.step_began_unix_s, message.dispatch_delay_s)
    if not all(map(isfinite, times)) or message.dispatch_delay_s < 0:
        raise PictureError("time")
    if len(message.step_error) != 2:
        raise PictureError("step_time")
    try:
        config = wire.config_from_proto(message.config)
        tables = tables_of(message.profile) if message.profile else None
        drafted, accepted = map(wire.draft_ratios, (message.drafted_ratio, message.accepted_ratio))
    except ValueError as error:
        raise PictureError("config") from error
    picture = PublishedPicture(
        instance_id=message.instance_id,
        config=config,
        taken_s=message.taken_unix_s,
        running=message.running,
        free_blocks=message.free_blocks,
        waiting_blocks=message.waiting_blocks,
        shapes=tuple(map(wire.shape_from_proto, message.steps_in_flight)),
        step_began_s=message.step_began_unix_s,
        online_ttft_s=message.online_ttft_s,
        usual_online_blocks=message.usual_online_blocks,
        drafted_ratio=drafted,
        accepted_ratio=accepted,
        requests=message.requests,
        reservations=message.reservations,
        expected=message.expected,
        dispatch_delay_s=message.dispatch_delay_s,
        step_time=tuple(message.step_time),
        step_error=(message.step_error[0], message.step_error[1]),
        calibration_steps=message.calibration_steps,
        step_tables=tables,
        notices=message.notices,
        inputs=message.inputs,
        contents=message.contents,
    )
    if picture.checksum != message.checksum:
        raise PictureError("checksum")
    return picture
