"""Prompt length in tokens, estimated without a tokenizer."""

PRIOR_TOKENS_PER_CHARACTER = 0.25
PRIOR_TOKENS_PER_MESSAGE = 4.0
"""Tokens that a chat template adds to a message: role, separators."""

_REPEATED = 0.9  # below 1: clients trim answers, and text read again may become other tokens
_MOST_FORGETFUL = 64
_DECAY = 0.98  # per observation: about the latest fifty prompts count
_PRIOR_CHARACTERS = 100.0  # the prior on the ratio weighs as much as a prompt of this length
_PRIOR_MESSAGE_WEIGHT = 0.005  # and that on a message as much as one message in 200 characters


class PromptTokenEstimator:
    """tokens = a * characters + b * messages, with a and b learned online per model.

    Exponentially weighted least squares with weights 1 / characters (a prompt's deviation grows
    like the root of its length), pulled towards the priors above. For plain completions
    (`messages` 0) this is the exponentially weighted ratio of tokens to characters. Beyond
    `max_models` the least recently observed model is evicted.
    """

    def __init__(self, *, max_models: int = 64) -> None:
        if max_models < 1:
            raise ValueError(f"max_models must be positive, got {max_models}")
        self._max_models = max_models
        self._models: dict[str, _Fit] = {}  # least recently observed first

    def estimate(self, model: str, characters: int, messages: int) -> int:
        """Prompt tokens, at least 1; `messages` is 0 for a prompt without a chat template."""
        per_character, per_message = self._models.get(model, _PRIOR_FIT).coefficients
        return max(1, round(per_character * characters + per_message * messages))

    def observe(self, model: str, characters: int, messages: int, prompt_tokens: int) -> None:
        """Learn from an engine's count. A prompt without text or tokens is ignored."""
        if characters <= 0 or prompt_tokens <= 0:
            return
        fit = self._models.pop(model, None) or _Fit()
        self._models[model] = fit
        if len(self._models) > self._max_models:
            del self._models[next(iter(self._models))]
        fit.add(characters, max(0, messages), prompt_tokens)


class ConversationTokens:
    """Tokens of prompts together with their answers, as engines counted them, by prompt hash.

    So of a later turn, only the length of its new text has to be estimated. Beyond `most` the least
    recently noted prompt is evicted.
    """

    def __init__(self, *, most: int = 10_000) -> None:
        self._most = most
        self._tokens: dict[int, int] = {}  # least recently noted first
        self._forgetful: dict[str, None] = {}  # models, the first found first

    def note(self, prompt: int, tokens: int) -> None:
        """Note how many tokens a prompt and its answer had."""
        self._tokens.pop(prompt, None)
        self._tokens[prompt] = tokens
        if len(self._tokens) > self._most:
            del self._tokens[next(iter(self._tokens))]

    def of(self, model: str, prompt: int) -> int:
        """The tokens of a prompt to `model` and its answer; 0 if not known or not usable."""
        return 0 if model in self._forgetful else self._tokens.get(prompt, 0)

    def check(self, model: str, before: int, prompt_tokens: int) -> None:
        """Compare the next turn's tokens with those of the prompt `before` and its answer. If they
        are clearly fewer, prompts leave out the model's thoughts: its counts are not used again."""
        if prompt_tokens < _REPEATED * self.of(model, before):
            self._forgetful[model] = None
            if len(self._forgetful) > _MOST_FORGETFUL:
                del self._forgetful[next(iter(self._forgetful))]


class _Fit:
    """Decayed sums of the normal equations, and their solution."""

    __slots__ = ("_cc", "_cm", "_ct", "_mm", "_mt", "coefficients")

    def __init__(self) -> None:
        # Sums of w*c*c, w*c*m, w*m*m, w*c*t, w*m*t over (c)haracters, (m)essages and (t)okens,
        # w being 1 / c.
        self._cc = self._cm = self._mm = self._ct = self._mt = 0.0
        self.coefficients = (PRIOR_TOKENS_PER_CHARACTER, PRIOR_TOKENS_PER_MESSAGE)

    def add(self, characters: int, messages: int, tokens: int) -> None:
        self._cc = _DECAY * self._cc + characters
        self._cm = _DECAY * self._cm + messages
        self._mm = _DECAY * self._mm + messages * messages / characters
        self._ct = _DECAY * self._ct + tokens
        self._mt = _DECAY * self._mt + messages * tokens / characters
        self.coefficients = self._solve()

    def _solve(self) -> tuple[float, float]:
        cc, cm, mm = self._cc + _PRIOR_CHARACTERS, self._cm, self._mm + _PRIOR_MESSAGE_WEIGHT
        ct = self._ct + _PRIOR_CHARACTERS * PRIOR_TOKENS_PER_CHARACTER
        mt = self._mt + _PRIOR_MESSAGE_WEIGHT * PRIOR_TOKENS_PER_MESSAGE
        determinant = cc * mm - cm * cm  # positive: Cauchy-Schwarz, and the priors add to it
        per_character = (ct * mm - mt * cm) / determinant
        per_message = (mt * cc - ct * cm) / determinant
        if per_message < 0.0:
            return ct / cc, 0.0
        if per_character < 0.0:
            return 0.0, mt / mm
        return per_character, per_message


_PRIOR_FIT = _Fit()
