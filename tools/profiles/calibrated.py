"""`foretell profile calibrated`: what a predictor has learnt of its engine, as a profile."""

import grpc

from foretell.engine.published import step_time_of
from foretell.latency.importers.linear_fit import fit_linear
from foretell.latency.linear import StepTimeModel
from foretell.latency.tables import NO_TABLES, packed_tables
from foretell.model import GpuProfile
from foretell.tools.profiles.imports import ProfileError, of_engine
from foretell.v1 import predictor_pb2, predictor_pb2_grpc
from foretell.wire import config_from_proto

LEAST_STEPS = 1000
"""Steps that must have been learnt from: with fewer the load tells too little."""
_TIMEOUT_S = 10.0
_MOST_BYTES = 16 << 20


def calibrated_profile(predictor: str, name: str = "") -> GpuProfile:
    """The step times and limits of the engine of the predictor at a gRPC address, as six
    coefficients; those of tables are fitted to them. `name`: DEVICE/MODEL, or calibrated/MODEL.

    ProfileError says why there is none.
    """
    options = [("grpc.max_receive_message_length", _MOST_BYTES)]
    try:
        with grpc.insecure_channel(predictor, options) as channel:
            stub = predictor_pb2_grpc.PredictorStub(channel)
            status = stub.Status(predictor_pb2.StatusRequest(), timeout=_TIMEOUT_S)
            state = stub.State(predictor_pb2.StateRequest(), timeout=_TIMEOUT_S)
    except grpc.RpcError as error:
        raise ProfileError(f"no predictor at {predictor}: {error.details()}") from error
    if state.snapshot_age_s < 0:
        raise ProfileError(f"the predictor at {predictor} has not heard of its engine yet")
    if status.calibration_steps < LEAST_STEPS:
        raise ProfileError(
            f"the predictor at {predictor} has learnt from {status.calibration_steps} steps; "
            f"wait for {LEAST_STEPS} of the load that the profile is for"
        )
    config = config_from_proto(state.snapshot.config)
    tables = packed_tables(state.profile) if state.profile else NO_TABLES
    model = StepTimeModel(step_time_of(state.step_time, tables))
    served = config.model_name.rstrip("/").rpartition("/")[2] or "model"
    profile = of_engine(
        config,
        name or f"calibrated/{served}",
        f"learnt by a predictor from {status.calibration_steps} steps of "
        f"{config.engine_version}, whose times it met within {status.step_error_ratio:.1%}",
    )
    return fit_linear(profile, model)
