"""Parsed request bodies."""

import json
from typing import Any

from foretell.openai.parsing import (
    ApiRequest,
    parse,
)
from foretell.openai.surface import ENDPOINTS

COMPLETIONS, CHAT = ENDPOINTS["/v1/completions"], ENDPOINTS["/v1/chat/completions"]


def completion(**fields: Any) -> ApiRequest:
    body = {"model": "m", "prompt": "hello", **fields}
    return parse(COMPLETIONS, json.dumps(body).encode())


def chat(**fields: Any) -> ApiRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}
    return parse(CHAT, json.dumps(body).encode())
