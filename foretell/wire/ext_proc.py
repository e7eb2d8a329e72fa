"""Messages of Envoy's `ext_proc`: what a gateway says about a request, and the replies to it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from foretell.http1.response import Response
from foretell.openai.parsing import Spliced
from foretell.v1 import ext_proc_pb2 as pb

ENDPOINT = "x-gateway-destination-endpoint"
"""Header, and key in `NAMESPACE`: where the gateway sends the request, `IP:PORT[,IP:PORT...]`."""
SERVED = "x-gateway-destination-endpoint-served"
"""Response header in which the gateway names the endpoint that answered."""
SUBSET = "x-gateway-destination-endpoint-subset"
"""Key in `SUBSET_NAMESPACE`: the only endpoints that the gateway allows."""
DROPPED = "x-llm-d-request-dropped-reason"
"""Response header of requests that are refused for lack of engines or time."""
NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_LARGEST_CHUNK = 62_000  # of a body; Envoy rejects messages of 64 KiB
_OVERWRITE = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def headers_of(headers: pb.HttpHeaders) -> dict[str, str]:
    """Headers by their names in lower case; of several with one name, the first."""
    return {
        header.key: header.raw_value.decode("latin-1") or header.value
        for header in reversed(headers.headers.headers)
    }


def subset_of(request: pb.ProcessingRequest) -> frozenset[str] | None:
    """The endpoints that the gateway allows, `IP:PORT` each; None: any."""
    hint = request.metadata_context.filter_metadata
    if SUBSET_NAMESPACE not in hint or SUBSET not in hint[SUBSET_NAMESPACE].fields:
        return None
    value = hint[SUBSET_NAMESPACE].fields[SUBSET]
    listed = [item.string_value for item in value.list_value.values] or [value.string_value]
    named = (name.strip() for item in listed for name in item.split(","))
    return frozenset(name for name in named if name)


def destination(endpoints: str, headers: Mapping[str, str], removed: Sequence[str]) -> bytes:
    """Send the request to `endpoints`, with these headers set and those removed."""
    answer = pb.ProcessingResponse()
    _set(answer.request_headers.response.header_mutation, headers)
    return _towards(endpoints, tuple(removed)) + answer.SerializeToString()


@lru_cache(4096)
def _towards(endpoints: str, removed: tuple[str, ...]) -> bytes:
    """The part that requests share. Concatenated protobuf messages are read as one, merged."""
    answer = pb.ProcessingResponse()
    mutation = answer.request_headers.response.header_mutation
    _set(mutation, {ENDPOINT: endpoints})
    mutation.remove_headers.extend(removed)
    fields = answer.dynamic_metadata.fields[NAMESPACE].struct_value.fields
    fields[ENDPOINT].string_value = endpoints
    return answer.SerializeToString()


def body_chunks(body: bytes | Spliced, *, ends: bool) -> Iterator[bytes]:
    """The request's body for the engine; `ends`: no trailers follow it."""
    parts = (body,) if isinstance(body, bytes) else body.parts
    left_bytes = len(body)
    for part in parts:
        for at in range(0, max(1, len(part)), _LARGEST_CHUNK):
            answer = pb.ProcessingResponse()
            chunk = answer.request_body.response.body_mutation.streamed_response
            chunk.body = bytes(part[at : at + _LARGEST_CHUNK])
            left_bytes -= len(chunk.body)
            chunk.end_of_stream = ends and not left_bytes
            yield answer.SerializeToString()


def response_headers(headers: Mapping[str, str]) -> bytes:
    """Continue with the engine's answer, with these headers set."""
    answer = pb.ProcessingResponse()
    mutation = answer.response_headers.response.header_mutation
    _set(mutation, headers)
    mutation.remove_headers.append(SERVED)
    return answer.SerializeToString()


def response_body(body: pb.HttpBody, *, duplex: bool) -> bytes:
    """Continue with a part of the engine's answer, which a `duplex` gateway wants back."""
    answer = pb.ProcessingResponse()
    common = answer.response_body.response
    common.SetInParent()
    if duplex:
        chunk = common.body_mutation.streamed_response
        chunk.body, chunk.end_of_stream = body.body, body.end_of_stream
    return answer.SerializeToString()


def immediate(response: Response) -> bytes:
    answer = pb.ProcessingResponse()
    answer.immediate_response.status.code = response.status
    answer.immediate_response.body = response.body
    headers = {"content-type": response.content_type, **response.headers}
    _set(answer.immediate_response.headers, headers)
    answer.immediate_response.details = "foretell"
    return answer.SerializeToString()


REQUEST_TRAILERS = pb.ProcessingResponse(request_trailers=pb.TrailersResponse()).SerializeToString()
RESPONSE_TRAILERS = pb.ProcessingResponse(
    response_trailers=pb.TrailersResponse()
).SerializeToString()


def _set(mutation: pb.HeaderMutation, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        option = mutation.set_headers.add(append_action=_OVERWRITE)
        option.header.key, option.header.raw_value = name, value.encode("latin-1")
