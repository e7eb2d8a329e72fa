"""How engines say what they cannot serve: by status, fields, numbers and names, in any words."""

import json
from typing import Any

import pytest

from foretell.answer.judgement import Asked, judge
from foretell.placement.needs import Need

PICTURE = Need(inputs=frozenset(("image",)))
TEXT = Need()


def unfit(status: int, body: object, need: Need = TEXT) -> str:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return judge(status, raw, asked=Asked(need, "m-7b", 8192)).unfit


def error(message: str, param: str | None = None, code: Any = 400) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": param, "code": code}}


@pytest.mark.parametrize(
    ("why", "status", "body", "need"),
    [
        # vLLM 0.30 to 0.33, `renderers/params.py` and `v1/engine/input_processor.py`
        ("length", 400, error("This model's maximum context length is ...", "input_tokens"), TEXT),
        ("length", 400, error("in words of another release", "input_text"), TEXT),
        ("length", 400, error("The decoder prompt (length 9000) is longer than 8192."), TEXT),
        (
            "length",
            400,
            error("max_tokens=9999 is more than max_model_len=8192", "max_tokens"),
            TEXT,
        ),
        ("length", 400, error("zu lang", code="context_length_exceeded"), TEXT),
        # before it was wrapped in `error`
        ("length", 400, {"object": "error", "message": "at most 8192 tokens", "code": 400}, TEXT),
        ("", 400, error("max_tokens must be at least 1, got 0", "max_tokens"), TEXT),
        ("", 400, error("top_k must be at most 81920", "top_k"), TEXT),
        ("", 400, error("bad sampling", "top_p"), PICTURE),
        # `multimodal/processing/context.py`: a limit of 0, not of 3
        ("image", 400, error("At most 0 image(s) may be provided.", "image"), PICTURE),
        ("image", 400, error("At most 0 image(s) may be provided in one prompt."), PICTURE),
        ("", 400, error("At most 3 image(s) may be provided.", "image"), PICTURE),
        ("", 400, error("cannot identify image file"), PICTURE),
        ("", 400, error("At most 0 image(s) may be provided.", "image"), TEXT),
        ("image", 400, error("m-7b is not a multimodal model"), PICTURE),
        # `serve/engine/serving.py`, `openai/responses/serving.py`
        ("model", 404, error("The model `m-7b` does not exist.", "model", 404), TEXT),
        ("model", 404, error("`m-7b`: unbekannt", None, 404), TEXT),
        ("response", 404, error("no such thing", "response_id", 404), TEXT),
        ("response", 404, error("Response with id 'resp_a' not found.", None, 404), TEXT),
        ("", 404, {"detail": "Not Found"}, TEXT),
        ("", 404, error("something else", None, 404), TEXT),
        ("", 500, error("maximum context length", "input_tokens", 500), TEXT),
        ("", 400, b"8192 and no JSON", TEXT),
        ("", 400, [8192], TEXT),
    ],
)
def test_what_another_engine_may_serve_is_told(
    why: str, status: int, body: object, need: Need
) -> None:
    assert unfit(status, body, need) == why
