"""Secrets of containers: files that Compose mounts, so that no container has them as variables."""

from collections.abc import Callable, Iterable

from foretell.config import Layout
from foretell.config.layout import CONTAINER_FILES

_HELD = {
    "api_keys_file": "the keys of clients",
    "engine_api_key_file": "a key that the engines demand",
    "scheduler_api_key_file": "the key of one client",
    "secret_file": "a secret that all hosts share",
    "hf_token_file": "a token of the hub",
    "https_key": "the key of a certificate",
    "tls_key": "the key of a certificate",
}
"""What each secret is, by the setting with its path; in .env, a variable in upper case has it."""
_ON_REQUEST = ("api_keys_file", "engine_api_key_file", "scheduler_api_key_file", "hf_token_file")
_ACROSS_HOSTS = ("engine_api_key_file", "secret_file")


class Secrets:
    """The secrets of one compose file, by the names of the settings with their paths."""

    def __init__(self, layout: Layout, relative: Callable[[str], str]) -> None:
        """`relative` returns a path as seen from the compose file."""
        self.declared: dict[str, dict[str, str]] = {}
        """The section `secrets` of the file: those that services mount."""
        sections = (layout.cluster.schedulers, layout.cluster.traffic)
        named = {name: path for section in sections for name, path in section if name in _HELD}
        self._named = {name: relative(path) for name, path in named.items() if path}
        self._needed = _ACROSS_HOSTS if layout.several_hosts else ()

    def wanted(self, settings: Iterable[str]) -> list[str]:
        """Those of the settings whose secrets the user has named, must name, or may name."""
        here = {*self._named, *self._needed, *_ON_REQUEST}
        return [name for name in settings if name in here and name in _HELD]

    def mounted(self, names: Iterable[str]) -> list[dict[str, str]]:
        """The section `secrets` of a service; declares these secrets in the file, too."""
        names = list(names)
        self.declared |= {name: {"file": self._source(name)} for name in names}
        return [{"source": name, "target": f"{CONTAINER_FILES}/{name}"} for name in names]

    def path(self, name: str) -> str:
        """The setting: the secret's path in a container; empty if the user names none."""
        path = f"{CONTAINER_FILES}/{name}"
        if name in self._named or name in self._needed:
            return path
        variable = "api_keys_file" if name == "scheduler_api_key_file" else name
        return f"${{{variable.upper()}:+{path}}}"

    def _source(self, name: str) -> str:
        variable = name.upper()
        if name in self._named:
            return f"${{{variable}:-{self._named[name]}}}"
        if name in self._needed:
            return f"${{{variable}:?name a file with {_HELD[name]}}}"
        other = self._source("api_keys_file") if name == "scheduler_api_key_file" else "/dev/null"
        return f"${{{variable}:-{other}}}"


def refusal(name: str) -> str:
    """A suffix that makes a setting fail, with a hint, if .env has its former variable."""
    once = name.removesuffix("_file").upper()
    return f"${{{once}:+ ({once} is {name.upper()} now)}}"
