"""Externality: the least delay in total, to the request and to everyone already there."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.total_delay import TotalDelay


class ExternalityPolicy:
    """What `slo` does with requests that have no targets: see `foretell.policy.total_delay`."""

    name: ClassVar[str] = "externality"
    needs: ClassVar[Needs] = Needs.EXTERNALITY

    def __init__(self) -> None:
        self._total_delay = TotalDelay()

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate that adds the least delay in total."""
        return self._total_delay.choose(candidates, draw)
