"""Output lengths: estimated when requests arrive, learnt when answers have ended."""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.length import LengthHistory, clip, from_hint
from foretell.length.conversation import LengthQuestion
from foretell.length.sampling import Sample
from foretell.model import LengthEstimate
from foretell.openai.conversation import conversation_of
from foretell.openai.parsing import ApiRequest
from foretell.services.process.logs import about

if TYPE_CHECKING:
    from foretell.length.adapted import EncoderModel

logger = logging.getLogger(__name__)


def open_model(name: str) -> "EncoderModel | None":
    """The small length model that a setting names; None for `none`, or where numpy is missing.

    Raises `SystemExit` if the folder cannot be used.
    """
    if name == "none":
        return None
    try:
        from foretell.length.adapted import EncoderModel  # noqa: PLC0415
        from foretell.length.small import SmallModel, Weights, shipped  # noqa: PLC0415
    except ImportError as error:
        logger.warning("lengths are estimated from finished requests alone: %s", error)
        return None
    try:
        weights = Weights.read(shipped() if name == "shipped" else Path(name))
    except (OSError, ValueError) as error:
        raise SystemExit(f"scheduler length model {name!r}: {error}") from error
    return EncoderModel(SmallModel(weights), "small_model")


class FastLengths:
    """Fast estimates: from the small model if there is one and the request has text, otherwise from
    the lengths of earlier answers."""

    def __init__(self, model: "EncoderModel | None" = None) -> None:
        self._model = model
        self._history = LengthHistory()
        self._sample = Sample()

    def estimate(
        self, key: str, request: ApiRequest, prompt_tokens: int, max_model_len: int | None = None
    ) -> LengthEstimate:
        """The length of the answer to a request, between its `min_tokens` and `max_tokens`.

        `key`: identifies the answer in `observe`. `max_model_len`: the engines' longest context,
        if known.
        """
        if request.unending and max_model_len is not None:
            return from_hint(max(1, max_model_len - prompt_tokens))
        if request.hint_tokens:
            return clip(from_hint(request.hint_tokens), request.max_tokens, request.min_tokens)
        if self._model is not None and request.text:
            try:
                return self._read(self._model, key, request, prompt_tokens)
            except Exception:  # whatever a model can raise
                logger.exception("the length model failed", extra=about(request.request_id))
        return self._history.estimate(
            request.model, prompt_tokens, request.max_tokens, request.min_tokens, request.kind
        )

    def observe(
        self,
        key: str,
        request: ApiRequest,
        prompt_tokens: int,
        output_tokens: int,
        censored: bool,
    ) -> None:
        """Learn from an answer. `censored`: something other than the model ended it."""
        self._history.observe(request.model, prompt_tokens, output_tokens, censored, request.kind)
        if self._model is not None and self._sample.of((key,), time.monotonic()):
            self._model.observe(key, request.model, output_tokens, censored)

    def _read(
        self, model: "EncoderModel", key: str, request: ApiRequest, prompt_tokens: int
    ) -> LengthEstimate:
        conversation = conversation_of(request, prompt_tokens)
        question = LengthQuestion(request.model, conversation, request.tenant)
        (found,) = model.infer([question])
        model.remember(key, question, found)
        (estimate,) = model.estimates([(question, found)])
        return estimate
