"""The errors for requests that go to no engine, and when their clients may retry."""

from collections.abc import Callable

from foretell.openai.errors import ApiError, retry_after, unavailable
from foretell.openai.parsing import ApiRequest
from foretell.openai.slo import SloUnattainable
from foretell.placement import PlacementCore, effects


def refusal(
    effect: effects.Refuse,
    parsed: ApiRequest,
    core: PlacementCore,
    now_s: float,
    out_for_s: Callable[[str], float],
) -> ApiError:
    """The error for a request that the core refuses at `now_s` on its clock. `out_for_s` returns
    the seconds for which no engine that serves a model has been up."""
    if effect.because == "late":
        assert effect.why is not None, "a late request is refused for a reason"
        return SloUnattainable(parsed.terms, effect.why)
    if effect.because == "over_share":
        return _over_share(parsed.tenant, core, now_s)
    if effect.because == "engine_failed":
        return engines_failed(core.config.max_attempts)
    if effect.because == "unfit":
        return ApiError(400, f"no engine that serves '{parsed.model}' can serve the request")
    if effect.because == "retry_budget":
        return unavailable("an engine failed, and many others fail too", "engine_failed")
    text = f"no engine that serves '{parsed.model}' is up at the moment"
    return unavailable(text, "no_instance", wait_s=out_for_s(parsed.model))


def engines_failed(tried: int) -> ApiError:
    """The error for a request whose attempts, `tried` at most, have all failed."""
    text = f"the engines that were tried ({tried}) failed before a first token"
    return unavailable(text, "engine_failed")


def _over_share(tenant: str, core: PlacementCore, now_s: float) -> ApiError:
    """An error 429. Retry when all waiting requests will be sent, at the last minute's rate."""
    sent = sum(each.dispatched_last_minute(now_s) for each in core.instances)
    headers = retry_after(60.0 * core.shares.held / max(1, sent))
    text = f"'{tenant}' has more than its share of the engines, and too many requests wait"
    return ApiError(429, text, code="over_share", headers=headers)
