"""What is refused of a request before an engine hears of it, and what is known of the others."""

import asyncio
import re
from collections.abc import Callable, Mapping

from foretell.services.scheduler.api.errors import ApiError
from foretell.services.scheduler.api.parsing import (
    PRIORITY_HEADER,
    ParsedRequest,
    parse,
    parse_form,
    with_priority_header,
)
from foretell.services.scheduler.api.shortened import LARGE_BYTES, shortened
from foretell.services.scheduler.api.slo import Terms
from foretell.services.scheduler.api.surface import Endpoint
from foretell.services.scheduler.ids import unique_ids
from foretell.services.scheduler.tenants.quota import Grant, Tenant

_OWN_IDS = unique_ids()
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


async def accepted(
    endpoint: Endpoint,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tenant: Tenant,
    grant: Grant | None,
    terms: Terms,
    serves: Callable[[str], bool],
    only: Callable[[], str],
) -> ParsedRequest:
    """The request in `body`; raises `ApiError` if it is wrong or for a model that nobody
    `serves`. `only` gives the model that is meant where none is named, or ""."""
    if endpoint.is_form:
        parsed = parse_form(endpoint, headers.get("content-type", ""), body, only=only)
    else:
        parsed = parse(endpoint, body, await shortened(body), only=only)
        if len(body) > LARGE_BYTES:
            await asyncio.sleep(0)  # others get their turn before it is written anew
    parsed.tenant, parsed.terms, parsed.grant = tenant.name, terms, grant
    tenant.check_model(parsed.model)
    if PRIORITY_HEADER in headers:
        parsed = with_priority_header(parsed, headers[PRIORITY_HEADER])
    if tenant.key is not None and tenant.key.priority is not None:
        parsed.priority = max(parsed.priority, tenant.key.priority)
    if not serves(parsed.model):
        raise model_not_found(parsed.model)
    return parsed


def model_not_found(name: str) -> ApiError:
    """The error 404 for a model that no engine serves."""
    return ApiError(404, f"The model '{name}' does not exist.", "model", "model_not_found")


def request_id_of(headers: Mapping[str, str]) -> str:
    """The client's own id where it can be one, otherwise a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else next(_OWN_IDS)
