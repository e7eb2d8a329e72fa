"""How much one caller may do: token buckets, as in RFC 2697.

Tokens are reserved as predicted when a request is placed, and settled when its answer has ended.
"""

from collections.abc import Callable
from dataclasses import asdict
from hashlib import blake2b
from math import inf
from typing import NamedTuple

from foretell.openai.errors import ApiError, retry_after
from foretell.tenants.limits import Limits


class Bucket:
    """What may be spent: `per_min` at once, refilled in a minute; 0: there is no limit."""

    def __init__(self, per_min: int, clock: Callable[[], float]) -> None:
        self.per_min = per_min
        self._clock = clock
        self._level = float(per_min)
        self._filled_s = clock()

    @property
    def level(self) -> float:
        """What is left now; below 0 where more was spent than was there."""
        now_s = self._clock()
        gained = (now_s - self._filled_s) * self.per_min / 60.0
        self._level, self._filled_s = min(float(self.per_min), self._level + gained), now_s
        return self._level

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` is there; more than fits counts as a full bucket."""
        missing = min(amount, self.per_min) - self.level
        return missing * 60.0 / self.per_min if missing > 0 and self.per_min else 0.0

    def spend(self, amount: float) -> None:
        """Take out `amount`, or put it back where it is negative."""
        if self.per_min:
            self._level = min(float(self.per_min), self.level - amount)


class Grant:
    """One request of a caller, from its arrival to its end."""

    __slots__ = ("_reserved", "_tenant", "ends_s")

    def __init__(self, tenant: "Tenant") -> None:
        self._tenant = tenant
        self._reserved = 0.0
        self.ends_s = inf
        """When its answer is predicted to end, on the clock of the tenant."""

    def reserve(self, tokens: float) -> None:
        """The request will take so many tokens; raises `ApiError` 429 if they are not there."""
        self._tenant.check("tokens", tokens)
        if self._tenant.tokens.per_min:
            self._tenant.spend(0, tokens)
            self._reserved = tokens

    def foretell(self, e2e_s: float) -> None:
        """Its answer is predicted to end then."""
        self.ends_s = self._tenant.clock() + e2e_s

    def settle(self, tokens: float) -> None:
        self._tenant.spend(0, tokens - self._reserved)
        self._reserved = tokens

    def headers(self) -> dict[str, str]:
        return self._tenant.headers()

    def end(self) -> None:
        """The request is no longer in progress."""
        self._tenant.grants.discard(self)

    def __enter__(self) -> "Grant":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Spent(NamedTuple):
    """What replicas tell each other of a caller; `predictor.proto` says what a message has."""

    caller: int
    requests: int
    tokens: float
    in_progress: int
    requests_left: float
    tokens_left: float


class Tenant:
    """A caller: its name, what it may use, and what it has spent."""

    def __init__(
        self,
        name: str,
        limits: Limits | None,
        clock: Callable[[], float],
        elsewhere: Callable[[int], int] = lambda caller: 0,
    ) -> None:
        """`limits`: None: it has none. `clock` in seconds. `elsewhere`: requests of a `caller` in
        progress at other replicas."""
        self.name = name
        self.caller = int.from_bytes(blake2b(name.encode(), digest_size=8).digest())
        """By which replicas know it in what they tell each other."""
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
        """Spent here, and not yet told to other replicas."""

    def check_model(self, model: str) -> None:
        """Raises `ApiError` 403 for a model that it may not use."""
        if not self.may_use(model):
            text = f"your API key does not allow the model '{model}'"
            raise ApiError(403, text, "model", "model_not_allowed")

    def may_use(self, model: str) -> bool:
        """Whether it may use the model."""
        limits = self.limits
        return limits is None or not limits.models or model in limits.models

    def place(self) -> Grant | None:
        """Count a request, until its grant ends; raises `ApiError` 429 beyond a limit. There is no
        grant where there are no limits."""
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
        """Raises `ApiError` 429 where so much of a limit is not left."""
        bucket = self._limited.get(what)
        if bucket is not None and (wait_s := bucket.wait_s(amount)) > 0:
            raise self.refusal(f"{bucket.per_min} {what} per minute", wait_s)

    def spend(self, requests: int, tokens: float) -> None:
        """It has spent that much here; below 0: less than was reserved."""
        self.take_out(requests, tokens)
        self._untold_requests += requests
        self._untold_tokens += tokens

    def take_out(self, requests: int, tokens: float) -> None:
        """It has spent that much, here or elsewhere."""
        self._may_be_active = True
        self.requests.spend(requests)
        self.tokens.spend(tokens)

    def lower(self, requests_left: float, tokens_left: float) -> None:
        """No more than that is left."""
        self._may_be_active = True
        self.requests.spend(max(0.0, self.requests.level - requests_left))
        self.tokens.spend(max(0.0, self.tokens.level - tokens_left))

    @property
    def is_active(self) -> bool:
        """Other replicas have to know how much it has spent here, or has in progress."""
        if not self._may_be_active:  # most of many
            return False
        untold = self._untold_requests or self._untold_tokens
        spent = any(each.level < each.per_min for each in self._limited.values())
        self._may_be_active = bool(self.grants or untold or spent)
        return self._may_be_active

    def told(self) -> Spent:
        """What other replicas are told, once."""
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

    def told_to_itself(self, in_progress: int) -> dict[str, object]:
        """Its limits and what it uses of them; `in_progress`: its requests at this replica."""
        limits = asdict(self.limits) if self.limits else {}
        limits.pop("admin", None)
        usage: dict[str, object] = {"in_progress": in_progress}
        for name, bucket in self._limited.items():
            usage[f"{name}_left"] = max(0, int(bucket.level))
        return {"tenant": self.name, "limits": limits, "usage": usage}

    def refusal(self, limit: str, wait_s: float) -> ApiError:
        """The error for a request beyond a limit, which is there again after `wait_s`."""
        headers = retry_after(wait_s if wait_s < inf else 0.0) | self.headers()
        text = f"'{self.name}' has reached its limit of {limit}"
        text += f"; retry in {headers['retry-after']} s"
        return ApiError(429, text, code="rate_limit_exceeded", headers=headers)

    def headers(self) -> dict[str, str]:
        """What is left of its limits, as OpenAI's API tells it."""
        found: dict[str, str] = {}
        for name, bucket in self._limited.items():
            found[f"x-ratelimit-limit-{name}"] = str(bucket.per_min)
            found[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level)))
            found[f"x-ratelimit-reset-{name}"] = f"{bucket.wait_s(bucket.per_min):.3f}s"
        return found


NOBODY = Tenant("", None, lambda: 0.0)
"""The caller where no key is needed."""
