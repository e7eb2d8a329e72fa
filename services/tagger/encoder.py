"""Runs a trained length model with ONNX Runtime, without torch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from tokenizers import Tokenizer

from foretell.length.bins import BINS
from foretell.length.conversation import Conversation
from foretell.services.tagger.reading import (
    TOKENIZER,
    WEIGHTS,
    Description,
    EncoderInputs,
    PromptReader,
    padded,
)

_TOGETHER = 8
"""Prompts per run of the model: of about equal length, so that little is padding."""


_SLOW_FUSIONS = ["SkipLayerNormFusion"]
"""On a CPU, ONNX Runtime's fused kernel for a sum and its layer norm takes several times as long as
the two separately: a tenth of the total time."""


class OnnxEncoder:
    """Length distributions of conversations. Not thread-safe."""

    def __init__(self, folder: Path, *, threads: int = 1) -> None:
        """ValueError or OSError where `folder` holds no model of this version."""
        self._description = Description.read(folder)
        for name in (TOKENIZER, WEIGHTS):
            if not (folder / name).is_file():
                raise ValueError(f"{folder / name} does not exist")
        options = SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        try:
            tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
            self._session = InferenceSession(
                str(folder / WEIGHTS),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=_SLOW_FUSIONS,
            )
            self.reader = PromptReader(self._description, tokenizer)
            self._takes = {node.name for node in self._session.get_inputs()}
            # The first prompt takes longest, and fails if the files do not belong together.
            self.read([Conversation("Is all well?", 12, 4)], [""])
        except Exception as error:  # these libraries raise any error for broken files
            raise ValueError(f"{folder}: {error}") from error

    def read(
        self, conversations: Sequence[Conversation], models: Sequence[str]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Probabilities (n, `BINS`) of `foretell.length.bins`, standardised features (n, features).

        `models` are the serving models' names.
        """
        reader, found = self.reader, np.empty((len(conversations), BINS))
        sequences = reader.sequences(conversations)
        rows, numbers = reader.features(conversations), reader.models(models)
        order = np.argsort([len(ids) for ids, _ in sequences], kind="stable")
        for begin in range(0, len(order), _TOGETHER):
            chosen = order[begin : begin + _TOGETHER]
            inputs = padded(
                [sequences[i] for i in chosen],
                rows[chosen],
                numbers[chosen],
                self._description.marks.pad,
            )
            found[chosen] = self._run(inputs)
        return found, rows.astype(np.float64)

    def _run(self, inputs: EncoderInputs) -> NDArray[np.float64]:
        given = {
            "ids": inputs.ids,
            "segments": inputs.segments,
            "mask": inputs.mask,
            "features": inputs.features,
            "models": inputs.models,
        }
        taken = {name: array for name, array in given.items() if name in self._takes}
        logits = self._session.run(["logits"], taken)[0].astype(np.float64)
        logits /= self._description.temperature
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))
