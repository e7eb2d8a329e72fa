"""The model: a text encoder and a few features give a probability for each length bin."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
)

from foretell.length.bins import BINS
from foretell.length.features import NAMES
from foretell.tools.train.options import SCRATCH

_BESIDE = 128  # width of the encoded features
_HIDDEN = 256
_MODEL_WIDTH = 8
_DROPOUT = 0.2
_SCRATCH_WIDTH, _SCRATCH_LAYERS = 192, 3


class LengthModel(nn.Module):
    """Logits of `foretell.length.bins` from `foretell.services.tagger.reading.EncoderInputs`."""

    def __init__(self, encoder: PreTrainedModel, models: int) -> None:
        super().__init__()
        width = int(encoder.config.hidden_size)
        self.has_segments = getattr(encoder.config, "type_vocab_size", 1) > 1
        self.encoder = encoder
        self.serving = nn.Embedding(models + 1, _MODEL_WIDTH)
        self.beside = nn.Sequential(
            nn.Linear(len(NAMES) + _MODEL_WIDTH, _BESIDE),
            nn.GELU(),
            nn.Dropout(_DROPOUT),
            nn.Linear(_BESIDE, _BESIDE),
            nn.GELU(),
        )
        self.head = nn.Sequential(
            nn.LayerNorm(2 * width + _BESIDE),
            nn.Dropout(_DROPOUT),
            nn.Linear(2 * width + _BESIDE, _HIDDEN),
            nn.GELU(),
            nn.Dropout(_DROPOUT),
            nn.Linear(_HIDDEN, BINS),
        )

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor, features: Tensor, models: Tensor
    ) -> Tensor:
        given = {"token_type_ids": segments} if self.has_segments else {}
        read = self.encoder(input_ids=ids, attention_mask=mask, **given).last_hidden_state
        weights = mask.unsqueeze(-1).to(read.dtype)
        average = (read * weights).sum(1) / weights.sum(1)
        beside = self.beside(torch.cat((features, self.serving(models)), 1))
        logits: Tensor = self.head(torch.cat((read[:, 0], average, beside), 1))
        return logits


def make_encoder(name: str, layers: int, vocabulary: int) -> PreTrainedModel:
    """The first `layers` (0: all) of a Hugging Face encoder; without dropout.

    On a CPU dropout takes a third of the time, and it hardly matters in the few epochs of
    fine-tuning, since the head has dropout.
    """
    if name == SCRATCH:
        config: Any = RobertaConfig(
            vocab_size=vocabulary,
            hidden_size=_SCRATCH_WIDTH,
            num_hidden_layers=layers or _SCRATCH_LAYERS,
            num_attention_heads=_SCRATCH_WIDTH // 32,
            intermediate_size=4 * _SCRATCH_WIDTH,
            max_position_embeddings=514,
            type_vocab_size=2,
        )
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        return RobertaModel(config, add_pooling_layer=False)
    config = AutoConfig.from_pretrained(name)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    config.num_hidden_layers = layers or config.num_hidden_layers
    halves = Path(name).is_dir() and not (Path(name) / "model.safetensors").exists()
    encoder: PreTrainedModel = AutoModel.from_pretrained(
        name,
        config=config,
        variant="fp16" if halves else None,
        use_safetensors=True,
        torch_dtype=torch.float32,
        add_pooling_layer=False,
    )
    return encoder


class OrdinalLoss(nn.Module):
    """Cross entropy with targets spread over neighbouring bins, in nats.

    An answer that was cut off is at least as long as what was seen of it. Its loss is minus the log
    of the probability of its bin and all higher ones. With teachers, the cross entropy with their
    probabilities has a share.
    """

    def __init__(self, neighbours: float, taught: float = 0.0) -> None:
        """`neighbours`: standard deviation of the target around the true bin, in bins; 0: only the
        true bin. `taught`: the teachers' share."""
        super().__init__()
        self._taught = taught
        bins = torch.arange(BINS, dtype=torch.float32)
        near = torch.exp(-0.5 * ((bins[None] - bins[:, None]) / max(neighbours, 1e-3)) ** 2)
        self.targets: Tensor
        self.register_buffer("targets", near / near.sum(1, keepdim=True))

    def forward(
        self, logits: Tensor, bins: Tensor, censored: Tensor, taught: Tensor | None = None
    ) -> Tensor:
        logs = torch.log_softmax(logits, 1)
        ended = -(self.targets[bins] * logs).sum(1)
        beyond = torch.logcumsumexp(logs.flip(1), 1).flip(1)
        cut = -beyond.gather(1, bins[:, None])[:, 0]
        loss = torch.where(censored, cut, ended)
        if taught is not None:
            loss = (1.0 - self._taught) * loss - self._taught * (taught * logs).sum(1)
        return loss.mean()
