"""Which engine keeps a response of the Responses API, so that what follows it goes there.

A response's id names its engine and its tenant, so that every replica knows, also one that has
started since, and other tenants find nothing. Ids that engines made themselves are known to the
replica that relayed them.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache

from foretell.openai.errors import ApiError
from foretell.openai.parsing import ApiRequest

PATH = "/v1/responses"
MOST_KNOWN = 20_000
"""Ids of engines' own that a replica remembers, the latest."""
_LONGEST_ID = 200
_OURS = re.compile(r"resp_([0-9a-f]{10})_([0-9a-f]{10})_[0-9a-f]{32}")


class KeptResponses:
    """Where responses are kept, as far as one replica knows."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Tenant and instance of each response."""

    def keeper(self, request: ApiRequest, instance_ids: Iterable[str]) -> str:
        """The instance that keeps what the request follows; "": none, or nobody knows."""
        previous = request.body.get("previous_response_id")
        if request.endpoint.path != PATH or not isinstance(previous, str):
            return ""
        return self.keeper_of(previous, request.tenant, instance_ids)

    def keeper_of(self, response_id: str, tenant: str, instance_ids: Iterable[str]) -> str:
        """The instance that keeps a response; "": none, or nobody knows.

        Raises `ApiError` where it is another tenant's.
        """
        if (ours := _OURS.fullmatch(response_id)) is not None:
            _check(response_id, ours[2] == _tag(tenant))
            return next((each for each in instance_ids if _tag(each) == ours[1]), "")
        owner, instance_id = self._known.get(response_id, (tenant, ""))
        _check(response_id, owner == tenant)
        return instance_id

    def learn(self, response_id: str, tenant: str, instance_id: str) -> None:
        """An engine has answered a tenant with this id."""
        if not response_id or len(response_id) > _LONGEST_ID or _OURS.fullmatch(response_id):
            return
        self._known[response_id] = (tenant, instance_id)
        self._known.move_to_end(response_id)
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)


def _check(response_id: str, is_theirs: bool) -> None:
    if not is_theirs:  # as engines say of one that they do not have
        raise ApiError(404, f"Response with id '{response_id}' not found.")


def response_id(request: ApiRequest, instance_id: str, draw: Callable[[], str]) -> str:
    """The id that the response shall have at this instance; "": its client or its engine says.
    `draw` gives 32 hexadecimal digits that nobody can guess.
    Where there are tenants no client chooses it: others could guess it, and ask another replica."""
    if request.endpoint.path != PATH or ("request_id" in request.body and not request.tenant):
        return ""
    return f"resp_{_tag(instance_id)}_{_tag(request.tenant)}_{draw()}"


@lru_cache(4096)
def _tag(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:10]
