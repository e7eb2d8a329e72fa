"""One line of a file of answered prompts, checked; docs/tools.md explains its fields."""

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)

from foretell.config.marks import field_name, plain


def _text(content: Any) -> Any:
    """The text parts of a message, joined by newlines; other content as it is."""
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "\n".join(text for text in texts if isinstance(text, str))
    return content or ""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Name = Annotated[str, Strict(False), Field(coerce_numbers_to_str=True)]


class Message(BaseModel):
    """A message of an OpenAI chat."""

    model_config = ConfigDict(strict=True)
    role: str
    content: Annotated[str, BeforeValidator(_text)] = ""


class Line(BaseModel):
    """The fields of one JSON object; a null counts as absent."""

    model_config = ConfigDict(strict=True)
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    """Instead of `prompt`."""
    response: str = ""
    system: str | None = None
    model: str = "default"
    conv: Name = ""
    part: Name = ""
    turn: int = Field(0, ge=0)
    in_tok: int = Field(-1, ge=0)
    """-1: unknown; the same for `hist_tok`."""
    hist_tok: int = Field(-1, ge=0)
    out_tok: int = Field(ge=1)
    max_tokens: int = Field(0, ge=0)
    stop: Annotated[list[str], BeforeValidator(_listed)] = []
    trunc: Annotated[bool, Strict(False)] = False

    @model_validator(mode="before")
    @classmethod
    def _given(cls, found: Any) -> Any:
        if not isinstance(found, dict):
            return found
        return {name: value for name, value in found.items() if value is not None}

    @model_validator(mode="after")
    def _asks(self) -> "Line":
        if self.messages is None and self.prompt is None:
            raise ValueError("prompt: missing")
        return self


def parse(text: str) -> Line:
    """The line; raises `ValueError` that names the field if one is wrong."""
    try:
        return Line.model_validate_json(text)
    except ValidationError as error:
        raise ValueError("; ".join(map(_problem, error.errors()))) from error


def _problem(item: Any) -> str:
    where = f"{field_name(item['loc'])}: " if item["loc"] else ""
    return f"{where}{plain(item['msg'])}"
