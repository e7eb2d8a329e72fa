"""How long answers and prompts will be, in tokens."""

from foretell.length.estimate import (
    clip,
    from_hint,
    says_more,
)
from foretell.length.history import PRIOR_TOKENS, QUANTILE_LEVELS, LengthHistory
from foretell.length.prompt import (
    PRIOR_TOKENS_PER_CHARACTER,
    ConversationTokens,
    PromptTokenEstimator,
)
from foretell.length.survival import SurvivalCurve

__all__ = [
    "PRIOR_TOKENS",
    "PRIOR_TOKENS_PER_CHARACTER",
    "QUANTILE_LEVELS",
    "LengthHistory",
    "PromptTokenEstimator",
    "ConversationTokens",
    "SurvivalCurve",
    "clip",
    "from_hint",
    "says_more",
]
