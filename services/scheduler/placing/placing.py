"""One request, as its handler and the placer know it."""

import asyncio

from foretell.openai.errors import ApiError
from foretell.openai.parsing import ApiRequest
from foretell.placement.needs import Need
from foretell.services.scheduler.placing.attempt import Attempt, Trace
from foretell.tenants.quota import Grant


class Placing:
    """One request from its placement to its end, as its handler and the placer know it."""

    request: ApiRequest
    """What was asked for, once its body is understood."""
    grant: Grant | None = None
    """What its tenant has left; None: it has no limits."""
    is_online = True
    """Somebody waits for its tokens."""
    key = ""
    """An id of its own: clients may use one X-Request-Id for many requests."""
    need: Need
    """What it needs of its engine."""
    trace: Trace
    arrived_s = 0.0
    began_s = 0.0
    """When its placement began: of a request that is placed again, the latest one."""
    attempt: Attempt | None = None
    """The latest one."""
    tagged = False
    """The tagger was asked about it."""
    is_sent = False
    """That attempt is in progress."""
    refusal: ApiError | None = None
    """Why it goes to no engine."""
    awaited: asyncio.Future[None] | None = None
    """Is set when it has been sent or refused, where somebody waits for that."""
