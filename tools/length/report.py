"""Progress and output of `foretell length eval`."""

import json
from pathlib import Path

from foretell.tools.length.dataset import read_examples
from foretell.tools.length.evaluate import evaluate
from foretell.tools.length.taggers import load_tagger
from foretell.tools.progress import showing


def evaluate_file(path: Path, *, train: Path | None, model: str, stream: bool, limit: int) -> None:
    """Print the scores as JSON to stdout; progress goes to stderr."""
    try:
        with showing("reading") as show:
            tagger = load_tagger(model)
            examples = read_examples(path, limit=limit)
            if train is not None:
                if model != "none":
                    raise ValueError(
                        "--train goes with --model none: it is what history learns from"
                    )
                for example in read_examples(train):
                    tagger.observe(example)
            result = evaluate(tagger, examples, stream=stream, show=show)
    except ValueError as error:
        raise SystemExit(f"length eval: {error}") from error
    print(json.dumps(result, indent=2, allow_nan=False))  # noqa: T201  the command's output
