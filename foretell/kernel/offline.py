"""What offline requests leave to online ones (`offline.h`): one rule for twins and real engines."""

from foretell.kernel.compiled import STRETCH, arrival_s, limit_s, slack_s, worth

__all__ = ["STRETCH", "arrival_s", "limit_s", "slack_s", "worth"]
