"""One request, as its handler and the placer know it."""

import asyncio

from foretell.openai.errors import ApiError
from foretell.openai.parsing import ApiRequest
from foretell.placement.needs import Need
from foretell.services.scheduler.placing.attempt import Attempt, RequestTrace
from foretell.tenants.quota import Grant


class Placing:
    """One request from its placement to its end, as its handler and the placer know it."""

    request: ApiRequest
    """The parsed request; set once its body has been parsed."""
    grant: Grant | None = None
    """Its share of its tenant's limits; None: the tenant has no limits."""
    is_online = True
    """Whether somebody waits for its tokens."""
    key = ""
    """An id of its own: clients may use one X-Request-Id for many requests."""
    need: Need
    """What its engine must be able to do."""
    trace: RequestTrace
    arrived_s = 0.0
    began_s = 0.0
    """When its latest placement began."""
    attempt: Attempt | None = None
    """The latest attempt."""
    tagged = False
    """Whether the tagger was asked about it."""
    is_sent = False
    """Whether the latest attempt is in progress."""
    refusal: ApiError | None = None
    """The error with which it was refused, if it was."""
    awaited: asyncio.Future[None] | None = None
    """Resolved when it is dispatched or refused; None while nothing waits for that."""
