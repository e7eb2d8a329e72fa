"""Authentication of clients by API key."""

import hmac
from collections.abc import Mapping

from services.scheduler.http.errors import ApiError


class ApiKeys:
    """The keys that clients may use; without any, everyone is served."""

    def __init__(self, keys: str) -> None:
        """`keys` is a list separated by commas; empty entries are ignored."""
        self._keys = tuple(key.strip().encode() for key in keys.split(",") if key.strip())

    def tenant(self, headers: Mapping[str, str]) -> str:
        """The tenant that a request's `Authorization` header names, or its `X-Api-Key`.

        Tenants are called by the position of their key, counted from 1; the name is empty where no
        key is needed. Raises `ApiError` 401 if the header holds none of the keys.
        """
        if not self._keys:
            return ""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if not scheme and "x-api-key" in headers:  # as Anthropic's clients do
            scheme, key = "bearer", headers["x-api-key"]
        given = key.strip().encode()
        # All keys are compared, each in constant time, so that timing tells nothing about them.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(
                401,
                "a valid API key is needed: send 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return str(matches.index(True) + 1)
