from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_KIND_PLAIN: _ClassVar[RequestKind]
    REQUEST_KIND_STOP: _ClassVar[RequestKind]
    REQUEST_KIND_STRUCTURED: _ClassVar[RequestKind]
    REQUEST_KIND_TOOLS: _ClassVar[RequestKind]
REQUEST_KIND_PLAIN: RequestKind
REQUEST_KIND_STOP: RequestKind
REQUEST_KIND_STRUCTURED: RequestKind
REQUEST_KIND_TOOLS: RequestKind

class Exchange(_message.Message):
    __slots__ = ("prompt", "answer", "answer_characters")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    answer: str
    answer_characters: int
    def __init__(self, prompt: _Optional[str] = ..., answer: _Optional[str] = ..., answer_characters: _Optional[int] = ...) -> None: ...

class TagRequest(_message.Message):
    __slots__ = ("request_id", "model_name", "prompt", "prompt_tokens", "max_tokens", "hint_tokens", "system", "earlier", "exchanges", "characters", "stops", "tenant", "min_tokens", "kind", "x_request_id")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HINT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    EXCHANGES_FIELD_NUMBER: _ClassVar[int]
    CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    X_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model_name: str
    prompt: str
    prompt_tokens: int
    max_tokens: int
    hint_tokens: int
    system: str
    earlier: _containers.RepeatedCompositeFieldContainer[Exchange]
    exchanges: int
    characters: int
    stops: int
    tenant: str
    min_tokens: int
    kind: RequestKind
    x_request_id: str
    def __init__(self, request_id: _Optional[str] = ..., model_name: _Optional[str] = ..., prompt: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., hint_tokens: _Optional[int] = ..., system: _Optional[str] = ..., earlier: _Optional[_Iterable[_Union[Exchange, _Mapping]]] = ..., exchanges: _Optional[int] = ..., characters: _Optional[int] = ..., stops: _Optional[int] = ..., tenant: _Optional[str] = ..., min_tokens: _Optional[int] = ..., kind: _Optional[_Union[RequestKind, str]] = ..., x_request_id: _Optional[str] = ...) -> None: ...

class Quantile(_message.Message):
    __slots__ = ("level", "tokens")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    level: float
    tokens: float
    def __init__(self, level: _Optional[float] = ..., tokens: _Optional[float] = ...) -> None: ...

class LengthEstimate(_message.Message):
    __slots__ = ("expected_tokens", "quantiles", "source")
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUANTILES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    expected_tokens: float
    quantiles: _containers.RepeatedCompositeFieldContainer[Quantile]
    source: str
    def __init__(self, expected_tokens: _Optional[float] = ..., quantiles: _Optional[_Iterable[_Union[Quantile, _Mapping]]] = ..., source: _Optional[str] = ...) -> None: ...

class TagBatch(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[TagRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[TagRequest, _Mapping]]] = ...) -> None: ...

class EstimateBatch(_message.Message):
    __slots__ = ("estimates",)
    ESTIMATES_FIELD_NUMBER: _ClassVar[int]
    estimates: _containers.RepeatedCompositeFieldContainer[LengthEstimate]
    def __init__(self, estimates: _Optional[_Iterable[_Union[LengthEstimate, _Mapping]]] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("model_name", "prompt_tokens", "output_tokens", "censored", "request_id", "kind")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CENSORED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    prompt_tokens: int
    output_tokens: int
    censored: bool
    request_id: str
    kind: RequestKind
    def __init__(self, model_name: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., censored: bool = ..., request_id: _Optional[str] = ..., kind: _Optional[_Union[RequestKind, str]] = ...) -> None: ...

class ObserveRequest(_message.Message):
    __slots__ = ("observations",)
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    observations: _containers.RepeatedCompositeFieldContainer[Observation]
    def __init__(self, observations: _Optional[_Iterable[_Union[Observation, _Mapping]]] = ...) -> None: ...

class ObserveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
