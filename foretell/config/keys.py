"""The file of named API keys: which callers may use which models, and how much."""

import yaml
from pydantic import Field, ValidationError

from foretell.config.sections import Section
from foretell.tenants.limits import TenantLimits


class ApiKey(Section):
    """One caller. Limits hold for all scheduler replicas together; 0: none."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """The key's SHA-256 in hexadecimal digits: `printf %s KEY | sha256sum`."""
    models: list[str] = Field(default_factory=list)
    """Models that it may use; empty: all."""
    requests_per_min: int = Field(0, ge=0)
    """Requests in a minute."""
    tokens_per_min: int = Field(0, ge=0)
    """Tokens of prompts and answers in a minute: reserved as predicted, settled at the end."""
    concurrency: int = Field(0, ge=0)
    """Requests in progress."""
    admin: bool = False
    """Whether it may see what becomes of the requests of all callers."""
    priority: int | None = None
    """vLLM's priority of its requests, which may ask for no smaller number. The engines need
    `--scheduling-policy priority`. Null: as the requests say."""

    @property
    def limits(self) -> TenantLimits:
        """What the caller may use."""
        return TenantLimits(**self.model_dump(exclude={"sha256"}))


def is_key_file(text: str) -> bool:
    """Whether a file names its keys; otherwise it is a list of them."""
    try:
        return isinstance(yaml.safe_load(text), dict)
    except yaml.YAMLError:
        return False


def read_api_keys(text: str) -> dict[str, ApiKey]:
    """The keys in a file that `is_key_file`, by the names of their callers.

    ValueError that says what is wrong.
    """
    keys: dict[str, ApiKey] = {}
    for name, fields in yaml.safe_load(text).items():
        try:
            keys[str(name)] = ApiKey.model_validate(fields)
        except ValidationError as error:  # its text would quote what was given
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, (name, *first["loc"])))
            raise ValueError(f"api keys: {where}: {first['msg']}") from error
    if len({key.sha256 for key in keys.values()}) != len(keys):
        raise ValueError("api keys: two callers have the same key")
    return keys
