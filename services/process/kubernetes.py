"""The Kubernetes API server, as a pod reaches it."""

import os
import ssl
from pathlib import Path

import aiohttp

from foretell.config.sections import bracketed

CREDENTIALS = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account's token, which rotates, its namespace and the CA."""
_LONGEST_READ = 1 << 18  # most bytes of one read


class KubernetesApi:
    """What every call needs: credentials, the trusted CA, and URLs."""

    def __init__(self, server: str, credentials: Path = CREDENTIALS) -> None:
        """`server`: https://HOST:PORT. Raises OSError if the credentials cannot be read."""
        self._server = server
        self._token = credentials / "token"
        self._namespace = (credentials / "namespace").read_text(encoding="utf-8").strip()
        # Trust the service account's CA and no other.
        context = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
        self.client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(),  # callers set timeouts
            trust_env=False,
            read_bufsize=_LONGEST_READ,
        )

    @classmethod
    def of_this_pod(cls) -> "KubernetesApi":
        """Return the API of the cluster that this process runs in; SystemExit outside of one."""
        try:  # Kubernetes sets these in every pod
            host, port = (os.environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
            return cls(f"https://{bracketed(host)}:{port}")
        except (KeyError, OSError) as error:
            raise SystemExit(
                f"this needs a pod of Kubernetes with a service account's token: {error!r}"
            ) from error

    def url(self, resource: str, group: str = "") -> str:
        """The URL of a resource in the pod's own namespace, such as `pods` or, in `apps/v1`,
        `statefulsets/NAME/scale`."""
        of = f"apis/{group}" if group else "api/v1"
        return f"{self._server}/{of}/namespaces/{self._namespace}/{resource}"

    def headers(self) -> dict[str, str]:
        """The authorization header; OSError if the token cannot be read."""
        return {"authorization": f"Bearer {self._token.read_text(encoding='utf-8').strip()}"}

    async def close(self) -> None:
        """Close the client. Idempotent."""
        await self.client.close()
