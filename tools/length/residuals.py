"""The shipped length model's errors on held-out prompts, as the file that simulations draw from.

    python -m foretell.tools.length.residuals PROMPTS.jsonl.gz

PROMPTS are answered prompts that the model was not trained on, as JSON lines (docs/tools.md).
Writes `foretell/workload/residuals.npz` (`foretell.workload.residual_length`).
"""

import argparse
import hashlib
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.length.bins import LEVELS
from foretell.services.tagger.models import folder_of
from foretell.tools.length.dataset import read_examples
from foretell.tools.length.scores import quantiles_of
from foretell.tools.length.taggers import load_tagger
from foretell.workload.residuals import FILE, SCALE

Floats = NDArray[np.float64]
_PARTS = 400
"""Lengths that stand for one distribution."""


def mixture(quantiles: Floats) -> Floats:
    """Lengths, ascending and equally likely, of the mixture of all answers' distributions.

    `quantiles` (n, `LEVELS`). Beyond the last level lengths go on in the cumulative hazard, as
    `quantiles_of` has them.
    """
    hazards = np.concatenate(([0.0], -np.log1p(-np.array(LEVELS))))
    wanted = -np.log1p(-(np.arange(_PARTS) + 0.5) / _PARTS)
    slopes = (quantiles[:, -1] - quantiles[:, -2]) / (hazards[-1] - hazards[-2])
    beyond = np.maximum(0.0, wanted - hazards[-1])
    rows = [np.interp(wanted, hazards, np.concatenate(([0.0], row))) for row in quantiles]
    return np.sort(np.ravel(np.array(rows) + slopes[:, None] * beyond))


def make(prompts: Path, out: Path) -> None:
    """Score `prompts` and write the file `out`."""
    examples = read_examples(prompts)
    believed = quantiles_of(load_tagger("shipped").estimate(examples))
    lengths = np.array([float(example.output_tokens) for example in examples])
    among = mixture(believed)
    # A length lies anywhere in the last token.
    ranks = np.searchsorted(among, lengths - 0.5) / len(among)
    quantiles = np.searchsorted(among, believed) / len(among)
    order = np.argsort(ranks, kind="stable")
    asked = np.array([float(example.conversation.prompt_tokens) for example in examples])
    asked_ranks = np.searchsorted(np.sort(asked), asked, side="right") / len(asked)
    model = hashlib.sha256((folder_of("shipped") / "model.onnx").read_bytes()).hexdigest()
    np.savez_compressed(
        out,
        levels=np.array(LEVELS),
        ranks=np.round(ranks[order] * SCALE).astype(np.uint16),
        prompts=np.round(asked_ranks[order] * SCALE).astype(np.uint16),
        quantiles=np.round(quantiles[order] * SCALE).astype(np.uint16),
        made_by=np.array(
            f"python -m foretell.tools.length.residuals {prompts.name}; sha256 of the prompts "
            f"{hashlib.sha256(prompts.read_bytes()).hexdigest()}, of the model {model}"
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("prompts", type=Path)
    make(parser.parse_args().prompts, Path(str(files("foretell.workload") / FILE)))


if __name__ == "__main__":
    main()
