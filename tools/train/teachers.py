"""Predictions of models trained before for the examples: targets beside the true lengths.

An answer is one draw from the lengths that its prompt may get; the mean of several models'
predicted distributions is closer to their true distribution, with less variance. (Hinton, Vinyals,
Dean 2015; and Furlanello et al. 2018, where a student no smaller than its teachers beats them.)
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.length.bins import BINS
from foretell.services.tagger.encoder import OnnxEncoder
from foretell.services.tagger.models import folder_of
from foretell.tools.length.dataset import Example
from foretell.tools.progress import Show

_TOGETHER = 256
_FILE = "taught.npy"


def taught_by(
    teachers: Sequence[str], examples: Sequence[Example], folder: Path, show: Show
) -> NDArray[np.float32]:
    """The mean of the teachers' probabilities (n, `BINS`), kept in `folder` for a resumed run.

    Raises ValueError or OSError if a teacher is no length model.
    """
    kept = folder / _FILE
    if kept.exists():
        found: NDArray[np.float32] = np.load(kept, allow_pickle=False)
        if found.shape == (len(examples), BINS):
            return found
    total, done = np.zeros((len(examples), BINS)), 0
    for teacher in teachers:
        encoder = OnnxEncoder(folder_of(teacher))
        for begin in range(0, len(examples), _TOGETHER):
            some = examples[begin : begin + _TOGETHER]
            read, _ = encoder.read(
                [example.conversation for example in some], [example.model_name for example in some]
            )
            total[begin : begin + len(some)] += read
            done += len(some)
            show("asking the teachers", done, len(teachers) * len(examples))
    mean = (total / len(teachers)).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(kept, mean, allow_pickle=False)
    return mean
