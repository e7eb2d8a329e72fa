"""Progress and output of `foretell length eval`."""

import json
from pathlib import Path

from rich.console import Console

from foretell.tools.length.dataset import read_examples
from foretell.tools.length.evaluate import evaluate
from foretell.tools.length.taggers import load_tagger
from foretell.tools.progress import showing


def evaluate_file(path: Path, *, train: Path | None, model: str, stream: bool, limit: int) -> None:
    """Print the scores as JSON to stdout; progress and notes go to stderr."""
    try:
        with showing("reading") as show:
            tagger = load_tagger(model)
            examples = read_examples(path, limit=limit)
            training = None if train is None else read_examples(train)
            if model == "none":
                for example in training or ():
                    tagger.observe(example)
            result = evaluate(tagger, examples, training=training, stream=stream, show=show)
    except ValueError as error:
        raise SystemExit(f"length eval: {error}") from error
    learnt = "by 5-fold cross-validation on the file itself" if train is None else f"to {train}"
    Console(stderr=True).print(f"Baselines were fitted {learnt}.", highlight=False)
    print(json.dumps(result, indent=2, allow_nan=False))  # noqa: T201  the command's output
