"""The images of a cluster's containers: their names, and how a checkout builds them."""

from pathlib import Path
from typing import Any

from foretell import __version__
from foretell.config import Cluster

_NAME = "${FORETELL_IMAGE:-foretell}"
_TAG = f"${{FORETELL_VERSION:-{__version__}}}"
_PYTHON = {"BASE_IMAGE": "${BASE_IMAGE:-python:3.11-slim-bookworm}"}
_VLLM = {"BASE_IMAGE": "${VLLM_IMAGE:-vllm/vllm-openai:v0.32.0}"}
_DOCKERFILE, _DOCKERFILE_VLLM = "deploy/Dockerfile", "deploy/Dockerfile.vllm"


def is_checkout(source: Path) -> bool:
    """Whether images can be built from this folder."""
    return all((source / name).exists() for name in ("pyproject.toml", _DOCKERFILE))


class Images:
    """The images of the services of one compose file.

    Without a checkout to build from, an image must be one that the host has or can pull.
    """

    def __init__(self, cluster: Cluster, context: str) -> None:
        """`context` is the checkout as seen from the compose file; empty: there is none."""
        self._context = context
        self._extras = _extras(cluster)
        self._built: set[str] = set()

    def services(self) -> dict[str, Any]:
        """The image of all services that need no GPU."""
        tag = "-".join([_TAG, *self._extras])
        args = {**_PYTHON, "MORE": ",".join(self._extras)} if self._extras else _PYTHON
        return self._image(f"{_NAME}:{tag}", _DOCKERFILE, args, "foretell")

    def envoy(self) -> dict[str, Any]:
        """The image of Envoy."""
        return self._image(f"{_NAME}-envoy:{_TAG}", _DOCKERFILE, _PYTHON, "envoy")

    def vllm(self) -> dict[str, Any]:
        """The image of vLLM with the plugin."""
        return self._image(f"{_NAME}-vllm:{_TAG}", _DOCKERFILE_VLLM, _VLLM)

    def _image(
        self, image: str, dockerfile: str, args: dict[str, str], target: str = ""
    ) -> dict[str, Any]:
        """Each image is built by the first service that uses it."""
        if not self._context:
            return {"image": image}
        service: dict[str, Any] = {"image": image, "pull_policy": "${PULL_POLICY:-never}"}
        if image not in self._built:
            self._built.add(image)
            index = {"PIP_INDEX_URL": "${PIP_INDEX_URL:-}"}
            build = {"context": self._context, "dockerfile": dockerfile, "args": args | index}
            service["build"] = build | ({"target": target} if target else {})
        return service


def _extras(cluster: Cluster) -> list[str]:
    """The extras that this cluster needs in its image."""
    stored = cluster.batches.database_url or cluster.batches.files_url
    needed = {"storage": stored, "tagger-hf": cluster.tagger.checkpoint}
    return [extra for extra, why in needed.items() if why]
