"""The messages that a gateway exchanges with an endpoint picker."""

import json
from typing import Any

from foretell.v1 import ext_proc_pb2 as pb


def asked(
    body: bytes, *, parts: int = 1, subset: str | None = None, **headers: str
) -> list[pb.ProcessingRequest]:
    """The messages of a completion request whose body comes in `parts`."""
    fields = {":method": "POST", ":path": "/v1/completions", **headers}
    values = [pb.HeaderValue(key=k, raw_value=v.encode()) for k, v in fields.items()]
    first = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=values)),
        protocol_config=pb.ProtocolConfiguration(
            request_body_mode=pb.ProtocolConfiguration.FULL_DUPLEX_STREAMED
        ),
    )
    if subset is not None:
        hint = first.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint.fields["x-gateway-destination-endpoint-subset"].string_value = subset
    size = -(-len(body) // parts)
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    return [
        first,
        *(pb.ProcessingRequest(request_body=pb.HttpBody(body=chunk)) for chunk in chunks[:-1]),
        pb.ProcessingRequest(request_body=pb.HttpBody(body=chunks[-1], end_of_stream=True)),
    ]


def endpoint_of(answer: pb.ProcessingResponse) -> str:
    """The endpoint that the picker's answer names."""
    options = answer.request_headers.response.header_mutation.set_headers
    found = {option.header.key: option.header.raw_value.decode() for option in options}
    return found["x-gateway-destination-endpoint"]


def body_of(answer: pb.ProcessingResponse) -> Any:
    """The JSON body of an immediate response."""
    return json.loads(answer.immediate_response.body)
