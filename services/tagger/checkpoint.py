"""A fine-tuned encoder that regresses output length from the prompt's text.

Any Hugging Face sequence-classification checkpoint with one label serves. torch and transformers
are imported only when one is loaded, so that a tagger without a checkpoint needs neither.
"""

import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

_DEFAULT_MAX_TOKENS = 512  # of models whose position encoding sets no limit
_LONGEST_TOKENS = float(1 << 24)  # keeps exp() of a wild logit finite


class CheckpointRegressor:
    """Implements `models.Regressor`; not thread-safe."""

    def __init__(
        self, torch: Any, tokenizer: Any, model: Any, target: Literal["tokens", "log_tokens"]
    ) -> None:
        self._torch = torch
        self._tokenizer = tokenizer
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = model.float().eval().to(self._device)
        self._target = target
        self.max_tokens = _max_tokens(model, tokenizer)

    def predict(self, prompts: Sequence[str]) -> list[float]:
        """Output tokens (at least 1) of each prompt; raises `ValueError` if one is not finite."""
        encoded = self._tokenizer(list(prompts), verbose=False)["input_ids"]
        inputs = self._tokenizer.pad(
            {"input_ids": [cut_middle(ids, self.max_tokens) for ids in encoded]},
            return_tensors="pt",
        ).to(self._device)
        with self._torch.inference_mode():
            logits = self._model(**inputs).logits
        return [_to_tokens(value, self._target) for value in logits[:, 0].tolist()]


def load(folder: str, target: Literal["tokens", "log_tokens"]) -> CheckpointRegressor:
    """Load the checkpoint in `folder` and try it on one prompt; SystemExit if it cannot serve."""
    if not Path(folder).is_dir():
        raise SystemExit(f"tagger checkpoint {folder!r} is not a folder")
    try:
        torch = importlib.import_module("torch")
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise SystemExit(
            f"a tagger checkpoint needs torch and transformers ({error}): "
            "pip install -e '.[tagger-hf]' in the checkout"
        ) from error
    transformers.utils.logging.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, local_files_only=True
        )
        if model.config.num_labels != 1:
            raise ValueError(f"it has {model.config.num_labels} labels; a regression has 1")
        if tokenizer.pad_token is None:
            raise ValueError("its tokenizer has no padding token")
        regressor = CheckpointRegressor(torch, tokenizer, model, target)
        # Also warms up: the first call of a fresh model takes several times as long.
        regressor.predict(["How long will the answer be?"])
    except Exception as error:  # these libraries raise any error for a broken folder
        raise SystemExit(f"cannot load tagger checkpoint {folder!r}: {error}") from error
    return regressor


def cut_middle(ids: list[int], max_tokens: int) -> list[int]:
    """Return at most `max_tokens` of `ids`, from both ends, where the special tokens are."""
    if len(ids) <= max_tokens:
        return ids
    tail = max_tokens // 2
    return ids[: max_tokens - tail] + ids[len(ids) - tail :]


def _to_tokens(value: float, target: Literal["tokens", "log_tokens"]) -> float:
    if not math.isfinite(value):
        raise ValueError(f"the checkpoint predicted {value}")
    if target == "log_tokens":
        value = math.exp(min(value, math.log(_LONGEST_TOKENS)))
    return min(max(1.0, value), _LONGEST_TOKENS)


def _max_tokens(model: Any, tokenizer: Any) -> int:
    """The longest input the model's position embeddings and its tokenizer allow."""
    limit = int(getattr(model.config, "max_position_embeddings", None) or _DEFAULT_MAX_TOKENS)
    for name, module in model.named_modules():
        padding_idx = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding_idx is not None:
            limit -= padding_idx + 1  # RoBERTa's family counts positions from there
    return min(limit, int(tokenizer.model_max_length))
