"""Use the docstrings below fields as their descriptions, for display."""

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel


def describe(model: type[BaseModel]) -> None:
    """Give each field of a model, and of the models in it, the docstring below it as description.

    Pydantic's own `use_attribute_docstrings` does so whenever a class is created. Reading the
    sources then took half of the time to import the configuration, in every process.
    """
    docstrings: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and not base.__module__.startswith("pydantic"):
            docstrings |= _below_fields(base)
    for name, field in model.model_fields.items():
        for inner in _models_in(field.annotation):
            describe(inner)
        field.description = field.description or docstrings.get(name)
    model.model_rebuild(force=True)


def _below_fields(model: type[BaseModel]) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
