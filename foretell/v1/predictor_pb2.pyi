from foretell.v1 import snapshot_pb2 as _snapshot_pb2
from foretell.v1 import tagger_pb2 as _tagger_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestSpec(_message.Message):
    __slots__ = ("request_id", "prompt_tokens", "max_tokens", "length", "priority", "sequences", "cached_tokens", "prefix", "prefix_chunk_tokens", "x_request_id", "ttft_target_s", "tpot_target_s", "whole_prompt", "prompt_before", "answered_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    X_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TTFT_TARGET_S_FIELD_NUMBER: _ClassVar[int]
    TPOT_TARGET_S_FIELD_NUMBER: _ClassVar[int]
    WHOLE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_tokens: int
    max_tokens: int
    length: _tagger_pb2.LengthEstimate
    priority: int
    sequences: int
    cached_tokens: int
    prefix: _containers.RepeatedScalarFieldContainer[int]
    prefix_chunk_tokens: float
    x_request_id: str
    ttft_target_s: float
    tpot_target_s: float
    whole_prompt: int
    prompt_before: int
    answered_tokens: float
    def __init__(self, request_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., length: _Optional[_Union[_tagger_pb2.LengthEstimate, _Mapping]] = ..., priority: _Optional[int] = ..., sequences: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., prefix: _Optional[_Iterable[int]] = ..., prefix_chunk_tokens: _Optional[float] = ..., x_request_id: _Optional[str] = ..., ttft_target_s: _Optional[float] = ..., tpot_target_s: _Optional[float] = ..., whole_prompt: _Optional[int] = ..., prompt_before: _Optional[int] = ..., answered_tokens: _Optional[float] = ...) -> None: ...

class RequestEnded(_message.Message):
    __slots__ = ("request_id", "answered", "x_request_id", "output_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    X_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    answered: bool
    x_request_id: str
    output_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., answered: bool = ..., x_request_id: _Optional[str] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class Seen(_message.Message):
    __slots__ = ("ttft_s", "output_tokens", "preemptions", "prompt_tokens", "cached_tokens")
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ttft_s: float
    output_tokens: int
    preemptions: int
    prompt_tokens: int
    cached_tokens: int
    def __init__(self, ttft_s: _Optional[float] = ..., output_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "secret")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    version: int
    secret: bytes
    def __init__(self, version: _Optional[int] = ..., secret: _Optional[bytes] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("reserved", "ended", "spending", "progress", "age_s")
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SPENDING_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    reserved: RequestSpec
    ended: RequestEnded
    spending: Spending
    progress: Progress
    age_s: float
    def __init__(self, reserved: _Optional[_Union[RequestSpec, _Mapping]] = ..., ended: _Optional[_Union[RequestEnded, _Mapping]] = ..., spending: _Optional[_Union[Spending, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., age_s: _Optional[float] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("steps_ago_s", "request_id", "tokens", "first_step", "steps", "since_ago_s")
    STEPS_AGO_S_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SINCE_AGO_S_FIELD_NUMBER: _ClassVar[int]
    steps_ago_s: _containers.RepeatedScalarFieldContainer[float]
    request_id: _containers.RepeatedScalarFieldContainer[str]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    first_step: _containers.RepeatedScalarFieldContainer[int]
    steps: _containers.RepeatedScalarFieldContainer[int]
    since_ago_s: float
    def __init__(self, steps_ago_s: _Optional[_Iterable[float]] = ..., request_id: _Optional[_Iterable[str]] = ..., tokens: _Optional[_Iterable[int]] = ..., first_step: _Optional[_Iterable[int]] = ..., steps: _Optional[_Iterable[int]] = ..., since_ago_s: _Optional[float] = ...) -> None: ...

class Spending(_message.Message):
    __slots__ = ("replica", "number", "spent")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    replica: int
    number: int
    spent: _containers.RepeatedCompositeFieldContainer[Spent]
    def __init__(self, replica: _Optional[int] = ..., number: _Optional[int] = ..., spent: _Optional[_Iterable[_Union[Spent, _Mapping]]] = ...) -> None: ...

class Spent(_message.Message):
    __slots__ = ("caller", "requests", "tokens", "in_progress", "requests_left", "tokens_left")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_LEFT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_LEFT_FIELD_NUMBER: _ClassVar[int]
    caller: int
    requests: int
    tokens: float
    in_progress: int
    requests_left: float
    tokens_left: float
    def __init__(self, caller: _Optional[int] = ..., requests: _Optional[int] = ..., tokens: _Optional[float] = ..., in_progress: _Optional[int] = ..., requests_left: _Optional[float] = ..., tokens_left: _Optional[float] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("request_id", "seen")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    seen: Seen
    def __init__(self, request_id: _Optional[str] = ..., seen: _Optional[_Union[Seen, _Mapping]] = ...) -> None: ...

class Published(_message.Message):
    __slots__ = ("sent_unix_s", "heard_unix_s", "snapshot", "ended", "all_prefixes", "cached_prefixes", "evicted_prefixes", "spending", "silent_s", "unpredicted")
    SENT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    HEARD_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ALL_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    CACHED_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    EVICTED_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    SPENDING_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    UNPREDICTED_FIELD_NUMBER: _ClassVar[int]
    sent_unix_s: float
    heard_unix_s: float
    snapshot: Snapshot
    ended: _containers.RepeatedCompositeFieldContainer[Ended]
    all_prefixes: bool
    cached_prefixes: _containers.RepeatedScalarFieldContainer[int]
    evicted_prefixes: _containers.RepeatedScalarFieldContainer[int]
    spending: _containers.RepeatedCompositeFieldContainer[Spending]
    silent_s: float
    unpredicted: str
    def __init__(self, sent_unix_s: _Optional[float] = ..., heard_unix_s: _Optional[float] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., ended: _Optional[_Iterable[_Union[Ended, _Mapping]]] = ..., all_prefixes: bool = ..., cached_prefixes: _Optional[_Iterable[int]] = ..., evicted_prefixes: _Optional[_Iterable[int]] = ..., spending: _Optional[_Iterable[_Union[Spending, _Mapping]]] = ..., silent_s: _Optional[float] = ..., unpredicted: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("notices", "instance_id", "config", "taken_unix_s", "running", "free_blocks", "waiting_blocks", "steps_in_flight", "step_began_unix_s", "dispatch_delay_s", "step_time", "step_error", "calibration_steps", "profile", "online_ttft_s", "usual_online_blocks", "drafted_ratio", "accepted_ratio", "contents", "version", "requests", "reservations", "expected", "inputs", "step_counter", "prefill_capacity_bound")
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TAKEN_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WAITING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    STEP_BEGAN_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_DELAY_S_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_FIELD_NUMBER: _ClassVar[int]
    STEP_ERROR_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_STEPS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    ONLINE_TTFT_S_FIELD_NUMBER: _ClassVar[int]
    USUAL_ONLINE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_RATIO_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_RATIO_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNTER_FIELD_NUMBER: _ClassVar[int]
    PREFILL_CAPACITY_BOUND_FIELD_NUMBER: _ClassVar[int]
    notices: int
    instance_id: str
    config: _snapshot_pb2.EngineConfig
    taken_unix_s: float
    running: int
    free_blocks: int
    waiting_blocks: int
    steps_in_flight: _containers.RepeatedCompositeFieldContainer[_snapshot_pb2.BatchShape]
    step_began_unix_s: float
    dispatch_delay_s: float
    step_time: _containers.RepeatedScalarFieldContainer[float]
    step_error: _containers.RepeatedScalarFieldContainer[float]
    calibration_steps: int
    profile: str
    online_ttft_s: float
    usual_online_blocks: float
    drafted_ratio: _containers.RepeatedScalarFieldContainer[float]
    accepted_ratio: _containers.RepeatedScalarFieldContainer[float]
    contents: int
    version: int
    requests: Table
    reservations: Table
    expected: Table
    inputs: Table
    step_counter: int
    prefill_capacity_bound: bool
    def __init__(self, notices: _Optional[int] = ..., instance_id: _Optional[str] = ..., config: _Optional[_Union[_snapshot_pb2.EngineConfig, _Mapping]] = ..., taken_unix_s: _Optional[float] = ..., running: _Optional[int] = ..., free_blocks: _Optional[int] = ..., waiting_blocks: _Optional[int] = ..., steps_in_flight: _Optional[_Iterable[_Union[_snapshot_pb2.BatchShape, _Mapping]]] = ..., step_began_unix_s: _Optional[float] = ..., dispatch_delay_s: _Optional[float] = ..., step_time: _Optional[_Iterable[float]] = ..., step_error: _Optional[_Iterable[float]] = ..., calibration_steps: _Optional[int] = ..., profile: _Optional[str] = ..., online_ttft_s: _Optional[float] = ..., usual_online_blocks: _Optional[float] = ..., drafted_ratio: _Optional[_Iterable[float]] = ..., accepted_ratio: _Optional[_Iterable[float]] = ..., contents: _Optional[int] = ..., version: _Optional[int] = ..., requests: _Optional[_Union[Table, _Mapping]] = ..., reservations: _Optional[_Union[Table, _Mapping]] = ..., expected: _Optional[_Union[Table, _Mapping]] = ..., inputs: _Optional[_Union[Table, _Mapping]] = ..., step_counter: _Optional[int] = ..., prefill_capacity_bound: bool = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("rows", "columns")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "kind", "width", "values")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FLOAT64: _ClassVar[Column.Kind]
        INT64: _ClassVar[Column.Kind]
        INT32: _ClassVar[Column.Kind]
    FLOAT64: Column.Kind
    INT64: Column.Kind
    INT32: Column.Kind
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: Column.Kind
    width: int
    values: bytes
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[Column.Kind, str]] = ..., width: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...
