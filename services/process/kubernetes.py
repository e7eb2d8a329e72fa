"""The API server of Kubernetes, as a pod finds it."""

import os
import ssl
from pathlib import Path

import aiohttp

from foretell.config.sections import bracketed

CREDENTIALS = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account's token, which changes, its namespace and the authority."""
_LONGEST_READ = 1 << 18  # bytes that are read at once


class KubernetesApi:
    """What every call of it needs: who we are, whom we trust, and where things are."""

    def __init__(self, server: str, credentials: Path = CREDENTIALS) -> None:
        """`server`: https://HOST:PORT. Raises OSError if the credentials cannot be read."""
        self._server = server
        self._token = credentials / "token"
        self._namespace = (credentials / "namespace").read_text(encoding="utf-8").strip()
        # The service account's authority and no other.
        context = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
        self.client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(),  # who calls sets the limits of time
            trust_env=False,
            read_bufsize=_LONGEST_READ,
        )

    @classmethod
    def of_this_pod(cls) -> "KubernetesApi":
        """That of the cluster that this process runs in; SystemExit outside of one."""
        try:  # Kubernetes sets these in every pod
            host, port = (os.environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
            return cls(f"https://{bracketed(host)}:{port}")
        except (KeyError, OSError) as error:
            raise SystemExit(
                f"this needs a pod of Kubernetes with a service account's token: {error!r}"
            ) from error

    def url(self, resource: str, group: str = "") -> str:
        """A resource in the pod's own namespace, such as `pods` or, of `apps/v1`,
        `statefulsets/NAME/scale`."""
        of = f"apis/{group}" if group else "api/v1"
        return f"{self._server}/{of}/namespaces/{self._namespace}/{resource}"

    def headers(self) -> dict[str, str]:
        """Who asks. OSError if the token cannot be read."""
        return {"authorization": f"Bearer {self._token.read_text(encoding='utf-8').strip()}"}

    async def close(self) -> None:
        """Idempotent."""
        await self.client.close()
