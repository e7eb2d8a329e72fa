"""Externality: the least delay in total, to the request and to everyone already there."""

from typing import ClassVar

from foretell.policy.base import Needs
from foretell.policy.total_delay import TotalDelayPolicy


class ExternalityPolicy(TotalDelayPolicy):
    """What `slo` does with requests that have no targets: see `foretell.policy.total_delay`."""

    name: ClassVar[str] = "externality"
    needs: ClassVar[Needs] = Needs.EXTERNALITY
