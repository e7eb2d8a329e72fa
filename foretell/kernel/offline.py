"""How far offline requests may delay online ones (`offline.h`), for twins and real engines."""

from foretell.kernel.compiled import STRETCH, arrival_s, limit_s, slack_s, worth

__all__ = ["STRETCH", "arrival_s", "limit_s", "slack_s", "worth"]
