"""Quotas of tenants: token buckets, as in RFC 2697.

The predicted tokens of a request are reserved before its placement, and settled at its end.
"""

from collections.abc import Callable
from dataclasses import asdict
from hashlib import blake2b
from math import inf
from typing import NamedTuple

from foretell.openai.errors import ApiError, retry_after
from foretell.tenants.limits import TenantLimits


class Bucket:
    """A token bucket that holds `per_min` and refills in a minute; 0: no limit."""

    def __init__(self, per_min: int, clock: Callable[[], float]) -> None:
        self.per_min = per_min
        self._clock = clock
        self._level = float(per_min)
        self._filled_s = clock()

    @property
    def level(self) -> float:
        """What is left now; negative if more was spent than was there."""
        now_s = self._clock()
        gained = (now_s - self._filled_s) * self.per_min / 60.0
        self._level, self._filled_s = min(float(self.per_min), self._level + gained), now_s
        return self._level

    def wait_s(self, amount: float) -> float:
        """Return the seconds until `amount` is there, or a full bucket if it is more than fits."""
        missing = min(amount, self.per_min) - self.level
        return missing * 60.0 / self.per_min if missing > 0 and self.per_min else 0.0

    def spend(self, amount: float) -> None:
        """Take out `amount`; a negative one is put back."""
        if self.per_min:
            self._level = min(float(self.per_min), self.level - amount)


class Grant:
    """One request of a tenant, from its arrival to its end."""

    __slots__ = ("_reserved", "_tenant", "ends_s")

    def __init__(self, tenant: "Tenant") -> None:
        self._tenant = tenant
        self._reserved = 0.0
        self.ends_s = inf
        """When its answer is predicted to end, on the clock of the tenant."""

    def reserve(self, tokens: float) -> None:
        """Reserve the tokens that the request will take. Raises `ApiError` 429 beyond the limit."""
        self._tenant.check("tokens", tokens)
        if self._tenant.tokens.per_min:
            self._tenant.spend(0, tokens)
            self._reserved = tokens

    def foretell(self, e2e_s: float) -> None:
        """Note that its answer is predicted to end in `e2e_s` seconds."""
        self.ends_s = self._tenant.clock() + e2e_s

    def settle(self, tokens: float) -> None:
        self._tenant.spend(0, tokens - self._reserved)
        self._reserved = tokens

    def headers(self) -> dict[str, str]:
        return self._tenant.headers()

    def end(self) -> None:
        """Count the request as no longer in progress."""
        self._tenant.grants.discard(self)

    def __enter__(self) -> "Grant":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Spent(NamedTuple):
    """What replicas tell each other of a tenant; its fields are described in `predictor.proto`."""

    caller: int
    requests: int
    tokens: float
    in_progress: int
    requests_left: float
    tokens_left: float


class Tenant:
    """A tenant: its name, its limits, and what it has spent."""

    def __init__(
        self,
        name: str,
        limits: TenantLimits | None,
        clock: Callable[[], float],
        elsewhere: Callable[[int], int] = lambda caller: 0,
    ) -> None:
        """`limits`: None if it has none. `clock`: in seconds. `elsewhere` returns how many requests
        of a `caller` are in progress at other replicas."""
        self.name = name
        self.caller = int.from_bytes(blake2b(name.encode(), digest_size=8).digest())
        """Its id in messages between replicas."""
        self.limits = limits
        self.clock = clock
        self.requests = Bucket(limits.requests_per_min if limits else 0, clock)
        self.tokens = Bucket(limits.tokens_per_min if limits else 0, clock)
        self._limited = {
            name: bucket
            for name, bucket in (("requests", self.requests), ("tokens", self.tokens))
            if bucket.per_min
        }
        self.grants: set[Grant] = set()
        self._elsewhere = elsewhere
        self._may_be_active = False
        self._untold_requests, self._untold_tokens = 0, 0.0
        """Spent here, but not yet told to other replicas."""

    def check_model(self, model: str) -> None:
        """Raise `ApiError` 403 for a model that it may not use."""
        if not self.may_use(model):
            text = f"your API key does not allow the model '{model}'"
            raise ApiError(403, text, "model", "model_not_allowed")

    def may_use(self, model: str) -> bool:
        """Whether it may use the model."""
        limits = self.limits
        return limits is None or not limits.models or model in limits.models

    def place(self) -> Grant | None:
        """Count a request until its grant ends. Raises `ApiError` 429 beyond a limit. Returns None
        if there are no limits."""
        if self.limits is None:
            return None
        most = self.limits.concurrency
        if most and len(self.grants) + self._elsewhere(self.caller) >= most:
            soonest_s = min((grant.ends_s for grant in self.grants), default=inf)
            raise self.refusal(f"{most} requests in progress", soonest_s - self.clock())
        self.check("requests", 1)
        if self.requests.per_min:
            self.spend(1, 0.0)
        grant = Grant(self)
        self.grants.add(grant)
        self._may_be_active = True
        return grant

    def check(self, what: str, amount: float) -> None:
        """Raise `ApiError` 429 if less than `amount` is left of a limit."""
        bucket = self._limited.get(what)
        if bucket is not None and (wait_s := bucket.wait_s(amount)) > 0:
            raise self.refusal(f"{bucket.per_min} {what} per minute", wait_s)

    def spend(self, requests: int, tokens: float) -> None:
        """Note what it has spent here; negative if it was less than reserved."""
        self.take_out(requests, tokens)
        self._untold_requests += requests
        self._untold_tokens += tokens

    def take_out(self, requests: int, tokens: float) -> None:
        """Note what it has spent, here or at another replica."""
        self._may_be_active = True
        self.requests.spend(requests)
        self.tokens.spend(tokens)

    def lower(self, requests_left: float, tokens_left: float) -> None:
        """Lower what is left of its limits to these values at most."""
        self._may_be_active = True
        self.requests.spend(max(0.0, self.requests.level - requests_left))
        self.tokens.spend(max(0.0, self.tokens.level - tokens_left))

    @property
    def is_active(self) -> bool:
        """Whether other replicas have to know what it has spent or has in progress here."""
        if not self._may_be_active:  # the common case with many tenants
            return False
        untold = self._untold_requests or self._untold_tokens
        spent = any(each.level < each.per_min for each in self._limited.values())
        self._may_be_active = bool(self.grants or untold or spent)
        return self._may_be_active

    def take_unsent(self) -> Spent:
        """Return what other replicas are to be told; what was spent since the last call is in it
        only once."""
        spent = Spent(
            caller=self.caller,
            requests=self._untold_requests,
            tokens=self._untold_tokens,
            in_progress=len(self.grants),
            requests_left=self.requests.level,
            tokens_left=self.tokens.level,
        )
        self._untold_requests, self._untold_tokens = 0, 0.0
        return spent

    def own_status(self, in_progress: int) -> dict[str, object]:
        """Return its limits and what it uses of them; `in_progress`: requests at this replica."""
        limits = asdict(self.limits) if self.limits else {}
        limits.pop("admin", None)
        usage: dict[str, object] = {"in_progress": in_progress}
        for name, bucket in self._limited.items():
            usage[f"{name}_left"] = max(0, int(bucket.level))
        return {"tenant": self.name, "limits": limits, "usage": usage}

    def refusal(self, limit: str, wait_s: float) -> ApiError:
        """Return the error for a request beyond a limit, to be retried after `wait_s`."""
        headers = retry_after(wait_s if wait_s < inf else 0.0) | self.headers()
        text = f"'{self.name}' has reached its limit of {limit}"
        text += f"; retry in {headers['retry-after']} s"
        return ApiError(429, text, code="rate_limit_exceeded", headers=headers)

    def headers(self) -> dict[str, str]:
        """Return what is left of its limits, in the headers of OpenAI's API."""
        found: dict[str, str] = {}
        for name, bucket in self._limited.items():
            found[f"x-ratelimit-limit-{name}"] = str(bucket.per_min)
            found[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level)))
            found[f"x-ratelimit-reset-{name}"] = f"{bucket.wait_s(bucket.per_min):.3f}s"
        return found


NOBODY = Tenant("", None, lambda: 0.0)
"""The tenant of all requests if no key is needed."""
