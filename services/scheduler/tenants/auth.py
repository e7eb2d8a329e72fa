"""Authentication of clients by API key."""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from foretell.config.keys import is_key_file, read_api_keys
from foretell.openai.errors import ApiError
from foretell.services.process.reread import LOOK_EVERY_S, Reread
from foretell.services.process.traffic import OPEN, Traffic
from foretell.services.scheduler.tenants.spending import Spending
from foretell.tenants.quota import NOBODY, Tenant


class ApiKeys:
    """The keys that clients may use; without any, everyone is served. A file of keys, in either
    form, is read again when it changes. If that fails, the log says so and the former keys stay."""

    def __init__(
        self,
        keys: str = "",
        file: str = "",
        clock: Callable[[], float] = time.monotonic,
        traffic: Traffic = OPEN,
    ) -> None:
        """`keys` is a list separated by commas; its tenants are named by their positions from 1.
        `file` names keys (`foretell.config.keys`), or has one in each line: then it is used only if
        its keys are `keys`. Raises OSError or ValueError if it cannot be read. A caller with the
        secret of `traffic` may call on behalf of any tenant."""
        listed = [key.strip() for key in keys.split(",") if key.strip()]
        self._tenants = _listed(listed)
        self._traffic = traffic
        text = Path(file).read_text() if file else ""
        counts = is_key_file(text) or (bool(listed) and text.split() == listed)
        self.spending = Spending(self._limited)
        """What callers with limits spend, here and at other replicas."""
        self._file: Reread | None = None
        if counts:
            path = Path(file)
            self._file = Reread("API keys", lambda: self._read(path), path, clock=clock)

    @property
    def needed(self) -> bool:
        """Whether clients need a key."""
        return bool(self._tenants) or self._file is not None

    def tenant(self, headers: Mapping[str, str]) -> Tenant:
        """The tenant that a request's `Authorization` header names, or its `X-Api-Key`. Raises
        `ApiError` 401 if the headers hold none of the keys."""
        if not self.needed:
            return NOBODY
        if self._file is not None:
            self._file.look()
        behalf = self._traffic.tenant(headers)
        if behalf is not None:
            return self._without_limits(behalf)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if not scheme and "x-api-key" in headers:  # as Anthropic's clients do
            scheme, key = "bearer", headers["x-api-key"]
        given = hashlib.sha256(key.strip().encode()).digest()
        # All keys are compared, each in constant time, so that timing tells nothing about them.
        found = [t for known, t in self._tenants.items() if hmac.compare_digest(given, known)]
        if scheme.lower() != "bearer" or not found:
            raise ApiError(
                401,
                "a valid API key is needed: send 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return found[0]

    def check_admin(self, headers: Mapping[str, str]) -> None:
        """Raise `ApiError` 401 or 403 unless the caller may see the requests of all callers. Where
        no key is needed, everyone may; a caller with a key without a name may not."""
        tenant = self.tenant(headers)
        if self.needed and (tenant.limits is None or not tenant.limits.admin):
            text = "this needs a key that is named with 'admin: true' in the file of API keys"
            raise ApiError(403, text, code="admin_key_needed")

    async def watch(self) -> None:
        """Check the file periodically, also without calls, until cancelled."""
        while self._file is not None:
            await asyncio.sleep(LOOK_EVERY_S)
            self._file.look()

    def _limited(self) -> list[Tenant]:
        return [each for each in self._tenants.values() if each.limits is not None]

    def _without_limits(self, name: str) -> Tenant:
        """The tenant for whom a service calls, which limits requests itself; "": for itself."""
        if not name:
            return NOBODY
        known = next((each for each in self._tenants.values() if each.name == name), None)
        if known is None:
            raise ApiError(401, f"'{name}' has no API key any more", code="invalid_api_key")
        if known.limits is None:
            return known
        unbounded = replace(known.limits, requests_per_min=0, tokens_per_min=0, concurrency=0)
        return Tenant(name, unbounded, time.monotonic)

    def _read(self, file: Path) -> None:
        text = file.read_text()
        if not is_key_file(text):
            if not text.split():
                raise ValueError(f"{file} is empty")
            self._tenants = _listed(text.split())
            return
        tenants: dict[bytes, Tenant] = {}
        for name, key in read_api_keys(text).items():
            digest, limits = bytes.fromhex(key.sha256), key.limits
            old = self._tenants.get(digest)
            if old is None or (old.name, old.limits) != (name, limits):
                old = Tenant(name, limits, time.monotonic, self.spending.in_progress)
            tenants[digest] = old
        self._tenants = tenants


def _listed(keys: Sequence[str]) -> dict[bytes, Tenant]:
    """Tenants of keys without names, by the keys' digests."""
    digests = [hashlib.sha256(key.encode()).digest() for key in keys]
    return {digest: Tenant(str(i), None, time.monotonic) for i, digest in enumerate(digests, 1)}
