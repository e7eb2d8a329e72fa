"""Request bodies that are valid HTTP with bad content."""

import json
from collections.abc import Callable, Iterable
from functools import partial

from vectors import Script, Vector
from world import MODEL, World

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_MIB = 1 << 20
_KEYS = "CVE-2012-1150 (Python) and others of many keys"
_DIGITS = "CVE-2020-10735 (Python)"
_DEEP = "CVE-2020-36518 (Jackson)"
_VALUES = "RFC 8259, section 9"
_TEMPLATE = "CVE-2025-62426 (vLLM)"
_USER = {"role": "user", "content": "x"}


def _list(each: bytes, number: int) -> bytes:
    return b"[" + b",".join([each] * number) + b"]"


def _object(names: Iterable[str]) -> bytes:
    return b"{" + b",".join(b'"%b":0' % name.encode() for name in names) + b"}"


def _names(number: int) -> Iterable[str]:
    return map("{:07x}".format, range(number))


def completion(**fields: bytes) -> bytes:
    """The body of a completion request; the values of `fields` are raw JSON."""
    told = {"model": json.dumps(MODEL).encode(), "prompt": b'"x"', **fields}
    return b"{" + b",".join(b'"%b":%b' % (name.encode(), v) for name, v in told.items()) + b"}"


def chat(messages: object, **fields: object) -> bytes:
    return json.dumps({"model": MODEL, "messages": messages, **fields}).encode()


_MANY_IDS = "a million token ids"
"""As Python integers they take 66 MiB if the heap has no free room."""
_LONE = b'"\\ud800"'
_TALK = [{"role": role, "content": "a b " * 95} for role in ("user", "assistant")]
CASES: dict[str, tuple[str, int, str, Callable[[], bytes]]] = {
    "keys": (_KEYS, 400, COMPLETIONS, lambda: completion(a=_object(_names(1_200_000)))),
    "keys, one 2 million times": (
        *(_KEYS, 400, COMPLETIONS),
        lambda: completion(a=_object(["a"] * 1_900_000)),
    ),
    "keys, and a lone surrogate": (
        *(_KEYS, 400, COMPLETIONS),
        lambda: completion(s=_LONE, a=_object(_names(1_200_000))),
    ),
    "keys of vllm_xargs": (
        *(_KEYS, 200, COMPLETIONS),
        lambda: completion(vllm_xargs=_object(_names(100_000))),
    ),
    "keys of a template": (
        *(_TEMPLATE, 200, CHAT),
        lambda: chat([_USER], chat_template_kwargs=dict.fromkeys(_names(100_000), 0)),
    ),
    "objects": (_VALUES, 400, COMPLETIONS, lambda: completion(a=_list(b"{}", 290_000))),
    "tools": (_VALUES, 400, CHAT, lambda: chat([_USER], tools=[{"a": 1}] * 140_000)),
    "numbers": (_VALUES, 400, COMPLETIONS, lambda: completion(a=_list(b"12345", 1_900_000))),
    "numbers, and a lone surrogate": (
        *(_VALUES, 400, COMPLETIONS),
        lambda: completion(s=_LONE, a=_list(b"1.5", 1_900_000)),
    ),
    "texts": (_VALUES, 400, COMPLETIONS, lambda: completion(stop=_list(b'"x"', 1_900_000))),
    "prompts": (_VALUES, 400, COMPLETIONS, lambda: completion(prompt=_list(b'"x"', 400_000))),
    "prompts of one token": (
        *(_VALUES, 400, COMPLETIONS),
        lambda: completion(prompt=_list(b"[1]", 100_000)),
    ),
    _MANY_IDS: (
        *(_VALUES, 200, COMPLETIONS),
        lambda: completion(prompt=_list(b"123456", 1_000_000)),
    ),
    "a number of 15 MB": (_DIGITS, 400, COMPLETIONS, lambda: completion(a=b"9" * 15 * _MIB)),
    "numbers of 4300 digits": (
        *(_DIGITS, 400, COMPLETIONS),
        lambda: completion(s=_LONE, a=_list(b"9" * 4300, 3000)),
    ),
    "beyond floating point": (_VALUES, 400, COMPLETIONS, lambda: completion(a=b"1e999")),
    "nested arrays": (_DEEP, 400, COMPLETIONS, lambda: completion(a=b"[" * 120_000)),
    "nested objects": (_DEEP, 400, COMPLETIONS, lambda: completion(a=b'{"a":' * 120_000)),
    "nested in vllm_xargs": (
        *(_DEEP, 400, COMPLETIONS),
        lambda: completion(vllm_xargs=b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    ),
    "messages": (_VALUES, 400, CHAT, lambda: chat([_USER] * 100_000)),
    "4 MB of messages": (_VALUES, 200, CHAT, lambda: chat(_TALK * 5000)),
    "kinds of parts": (
        *(_VALUES, 200, CHAT),
        lambda: chat([{**_USER, "content": [{"type": name} for name in _names(40_000)]}]),
    ),
    "parts of messages": (
        *(_VALUES, 200, CHAT),
        lambda: chat([{**_USER, "content": [{"type": "text", "text": "x"}] * 4}] * 5000),
    ),
    "a text of 15 MB": (
        *(_VALUES, 200, COMPLETIONS),
        lambda: completion(prompt=b'"%b"' % (b"\\u00e9 " * (2 * _MIB))),
    ),
    "a name of a model of 15 MB": (
        *(_VALUES, 404, COMPLETIONS),
        lambda: completion(model=b'"%b"' % (b"m" * 15 * _MIB)),
    ),
    "more answers than there are": ("CWE-770", 400, COMPLETIONS, lambda: completion(n=b"9" * 18)),
    "limits without limit": (
        *("CWE-770", 400, COMPLETIONS),
        lambda: completion(best_of=b"9" * 18, logprobs=b"9" * 18, max_tokens=b"9" * 18),
    ),
    "a pattern": (
        *("CVE-2025-48943 (vLLM)", 200, COMPLETIONS),
        lambda: completion(structured_outputs=b'{"regex":"%b"}' % (b"(a+)+" * 100_000)),
    ),
    "no JSON at all": (_VALUES, 400, COMPLETIONS, lambda: b"a" * 15 * _MIB),
    "UTF-16": (_VALUES, 400, COMPLETIONS, lambda: completion().decode().encode("utf-16")),
    "a response of which nobody knows": (
        *(_VALUES, 200, "/v1/responses"),
        lambda: json.dumps(
            {"model": MODEL, "input": "x", "previous_response_id": "r" * 15 * _MIB}
        ).encode(),
    ),
    "documents": (
        *(_VALUES, 400, "/rerank"),
        lambda: json.dumps({"model": MODEL, "query": "x", "documents": ["x"] * 1_900_000}).encode(),
    ),
}


def sent(world: World, path: str, status: int, body: Callable[[], bytes]) -> None:
    """Check that the body is answered with this status, in time."""
    assert world.ask("POST", path, body(), content_type="application/json")[0] == status


def form(world: World, part: bytes, number: int, status: int, boundary: bytes = b"x") -> None:
    """Check the status of a form with `number` parts, and one at the end that names the model."""
    lines = b"--" + boundary + b"\r\ncontent-disposition: form-data; "
    model = lines + b'name="model"\r\n\r\ntest-model\r\n--' + boundary + b"--\r\n"
    kind = "multipart/form-data; boundary=" + boundary.decode()
    body = (lines + part) * number + model
    assert world.ask("POST", "/v1/audio/translations", body, content_type=kind)[0] == status


_FORM = "RFC 7578; CVE-2023-30798 (Starlette)"
_EMPTY_PART = b'name="a"\r\n\r\n\r\n'

VECTORS: list[Vector] = [
    *(
        Script(
            f"json: {name}",
            source,
            partial(sent, path=path, status=status, body=body),
            most_mib=70.0 if name == _MANY_IDS else 50.0,
        )
        for name, (source, status, path, body) in CASES.items()
    ),
    Script("form: parts", _FORM, partial(form, part=_EMPTY_PART, number=300_000, status=400)),
    Script(
        "form: lines that are nearly boundaries",
        _FORM,
        partial(
            form,
            part=b'name="a"\r\n\r\n' + (b"\r\n" + b"-" * 71) * (_MIB // 8) + b"\r\n",
            number=1,
            status=200,
            boundary=b"-" * 69 + b"x",
        ),
    ),
]
