"""The model card of a trained model, its README."""

from collections.abc import Mapping
from pathlib import Path

from foretell.length.features import NAMES
from foretell.services.tagger.reading import TOKENIZER, WEIGHTS, Description
from foretell.tools.length.scores import Scores
from foretell.tools.markdown import markdown_table
from foretell.tools.train.options import TrainOptions

CARD = "README.md"


def write_card(
    options: TrainOptions,
    description: Description,
    facts: Mapping[str, int],
    scores: Mapping[str, Scores],
) -> None:
    """Write the model card into the folder of the model."""
    window, size_mb = description.window, (options.out / WEIGHTS).stat().st_size / 1e6
    layers = f"its first {options.layers} layers" if options.layers else "all of its layers"
    never = [
        name for name, scale in zip(NAMES, description.feature_scale, strict=True) if not scale
    ]
    text = "\n".join(
        (
            "# How long will the answer be?\n",
            "Made by `foretell train-tagger`. From a request's text, the distribution of the "
            "length of its answer in tokens, for `foretell`'s tagger.\n",
            f"- **Encoder**: {Path(options.encoder).name}, {layers}; weights in 8 bits, "
            f"{size_mb:.1f} MB of ONNX.",
            f"- **It reads** of the prompt the first {window.prompt[0]} and last "
            f"{window.prompt[1]} tokens, of the earlier prompt {window.asked[0]} and "
            f"{window.asked[1]}, of its answer {window.answered[0]} and {window.answered[1]}. "
            f"Beside the text it sees {len(NAMES)} figures, among them the lengths of earlier "
            "answers.",
            f"- **It learnt from** {facts['examples']:,} answers in {Path(options.train).name} "
            f"of {', '.join(description.models)}: {facts['steps']:,} batches of {options.batch}, "
            f"seed {options.seed}. Answers that were cut off count as at least so long."
            + _teachers(options),
            f"- **It gives** probabilities of bins evenly spaced in the logarithm, at temperature "
            f"{description.temperature}.",
            f"- **It never saw** vary: {', '.join(never) or 'nothing'}. These are left out.\n",
            "## Evaluation\n",
            _table(scores),
            "*Held out* are whole conversations of the training file, by which training was "
            "stopped and the temperature chosen. Lengths are scored as observed, also where an "
            "answer was cut off. `foretell length eval FILE` scores other files.\n",
            f"Files: `{WEIGHTS}`, `{TOKENIZER}`, `tagger.json`. `training/` is only needed to go "
            "on training.\n",
        )
    )
    (options.out / CARD).write_text(text)


def _teachers(options: TrainOptions) -> str:
    count = len(options.teachers)
    if not count:
        return ""
    whom = "a model" if count == 1 else f"{count} models"
    return f" {options.taught:.0%} of the target is what {whom} trained before said of each."


def _table(scores: Mapping[str, Scores]) -> str:
    numbers = "MAE | error rate | Acc-25 | Acc-50 | Acc-100 | Spearman | Kendall | pinball"
    header = ("on", *numbers.split(" | "), "within the 50 / 80 / 95% interval")
    return markdown_table(header, (_row(name, s) for name, s in scores.items()))


def _row(name: str, s: Scores) -> tuple[str, ...]:
    return (
        name,
        *(f"{s.mae:.1f}", f"{s.error_rate:.2f}"),
        *(f"{share:.1%}" for share in (s.acc_25, s.acc_50, s.acc_100)),
        *(_ratio(s.spearman), _ratio(s.kendall), f"{s.pinball:.1f}"),
        " / ".join(f"{100 * share:.1f}" for share in s.coverage.values()),
    )


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
