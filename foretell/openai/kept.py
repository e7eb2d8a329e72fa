"""Which engine keeps a response of the Responses API, so that follow-up requests go there.

A response's id contains tags of its engine and its tenant. So every replica finds the engine, even
one that started later, and other tenants cannot use the id. An id that an engine chose itself is
known only to the replica that relayed it.
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
"""The most ids chosen by engines that a replica remembers; the latest are kept."""
_LONGEST_ID = 200
_OURS = re.compile(r"resp_([0-9a-f]{10})_([0-9a-f]{10})_[0-9a-f]{32}")


class KeptResponses:
    """The engines that keep responses, as far as one replica knows."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Tenant and instance of each response."""

    def keeper(self, request: ApiRequest, instance_ids: Iterable[str]) -> str:
        """The instance that keeps the response that the request continues; "": none or unknown."""
        previous = request.body.get("previous_response_id")
        if request.endpoint.path != PATH or not isinstance(previous, str):
            return ""
        return self.keeper_of(previous, request.tenant, instance_ids)

    def keeper_of(self, response_id: str, tenant: str, instance_ids: Iterable[str]) -> str:
        """The instance that keeps a response; "": none or unknown.

        Raises `ApiError` if the response is another tenant's.
        """
        if (ours := _OURS.fullmatch(response_id)) is not None:
            _check(response_id, ours[2] == _tag(tenant))
            return next((each for each in instance_ids if _tag(each) == ours[1]), "")
        owner, instance_id = self._known.get(response_id, (tenant, ""))
        _check(response_id, owner == tenant)
        return instance_id

    def learn(self, response_id: str, tenant: str, instance_id: str) -> None:
        """Remember which instance keeps a response, unless Foretell chose the id."""
        if not response_id or len(response_id) > _LONGEST_ID or _OURS.fullmatch(response_id):
            return
        self._known[response_id] = (tenant, instance_id)
        self._known.move_to_end(response_id)
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)


def _check(response_id: str, is_theirs: bool) -> None:
    if not is_theirs:  # the message of engines for a response that they do not have
        raise ApiError(404, f"Response with id '{response_id}' not found.")


def response_id(request: ApiRequest, instance_id: str, draw: Callable[[], str]) -> str:
    """The id that the response gets at this instance; "": its client or its engine chooses it.
    `draw` returns 32 hexadecimal digits that cannot be guessed. With tenants, no client may choose
    the id, because other tenants could guess it and ask another replica."""
    if request.endpoint.path != PATH or ("request_id" in request.body and not request.tenant):
        return ""
    return f"resp_{_tag(instance_id)}_{_tag(request.tenant)}_{draw()}"


@lru_cache(4096)
def _tag(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:10]
