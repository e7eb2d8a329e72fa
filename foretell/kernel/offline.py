"""What offline requests leave to online ones (`offline.h`): one rule for twins and real engines."""

from foretell.kernel.compiled import STRETCH, arrival_s, limit_s, slack_s, worth

__all__ = ["OFFLINE_PRIORITY", "STRETCH", "arrival_s", "limit_s", "slack_s", "worth"]

OFFLINE_PRIORITY = 2**31 - 1
"""The last priority: that of offline requests, and where engines co-schedule of nobody else."""
