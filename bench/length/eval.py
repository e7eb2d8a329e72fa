"""How good is a length model, and how good could any be?

DATA holds `text/` with answered prompts. Scores a model on other conversations of the data set that
it learnt from, on streams of answers of serving models that it never saw, and by its CPU time; and
estimates from answers that were drawn several times how much of a length is chance.
"""

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from bench.length.data import convert
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.length.conversation import Conversation
from foretell.services.tagger.encoder import Encoder
from foretell.services.tagger.models import folder_of
from foretell.tools.length.dataset import Example, read_examples
from foretell.tools.length.evaluate import evaluate, running_medians
from foretell.tools.length.scores import Floats, Scores, quantiles_of, score
from foretell.tools.length.taggers import Tagger, load_tagger

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="10 minutes",
    paths={"DATA": "folder with text/"},
    packages=("foretell", "numpy", "onnxruntime"),
)
_LEARNT, _LEARNT_OF_FEW, _FEW = 300, 100, 600  # answers before scores count, of streams of fewer
_COST_TOKENS, _COST_MARGIN, _COST_BATCH, _COST_REPEATS = 128, 8, 32, 15


def stream_scores(model: str, examples: Sequence[Example]) -> dict[str, Any]:
    """Scores on one serving model's answers in order, once some of them have been learnt."""
    tagger = load_tagger(model)
    rows = []
    for example in examples:
        rows.append(quantiles_of(tagger.estimate([example]))[0])
        tagger.observe(example)
    learnt = _LEARNT if len(examples) >= _FEW else _LEARNT_OF_FEW
    lengths = np.array([float(example.output_tokens) for example in examples])
    found = score(np.array(rows)[learnt:], lengths[learnt:])
    medians = np.abs(running_medians(lengths) - lengths)[learnt:].mean()
    return {
        "requests": len(examples),
        "learnt": learnt,
        "mae": found.mae,
        "running_median_mae": float(medians),
        "spearman": found.spearman,
        "coverage": found.coverage,
    }


def noise_floor(path: Path, lengths: Floats) -> dict[str, float]:
    """What is left of errors where the distribution of each answer is known exactly.

    `path`: lengths of answers of one model to the same prompts at temperatures 0.5 and 0.7: nearly
    two draws from one distribution. The median of such a distribution is off by about 1/sqrt(2) of
    the mean difference of two draws (exactly so for normal and for Laplace by 2/3). On other
    `lengths` the floor is that of answers whose logarithm scatters as those do, drawn around them.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = json.load(file)
    pairs = np.array([(row["L_t0.5"], row["L_t0.7"]) for row in rows], dtype=float)
    pairs = pairs[(pairs > 0).all(axis=1)]
    first, second = pairs.T
    apart = np.log(second / first) / np.sqrt(2.0)  # about as one draw is from the centre
    rng = np.random.default_rng(0)
    drawn = lengths * np.exp(rng.choice(apart, len(lengths)))
    return {
        "prompts": len(pairs),
        "mean_tokens": float(pairs.mean()),
        "mae": float(np.abs(first - second).mean() / np.sqrt(2.0)),
        "within_50": float((np.abs(first - second) / np.sqrt(2.0) <= 50).mean()),
        "log_mae": float(np.abs(apart).mean()),
        "transferred_mae": float(np.abs(drawn - lengths).mean()),
        "transferred_within_50": float((np.abs(drawn - lengths) <= 50).mean()),
    }


def cost(model: str, examples: Sequence[Example]) -> dict[str, float]:
    """CPU of prompts of about 128 tokens, by themselves and with what came before them.

    Milliseconds per prompt: one thread, prompts together.
    """
    encoder = Encoder(folder_of(model), threads=1)
    tokens = encoder.reader.tokens([example.conversation.prompt for example in examples])
    chosen = [
        example.conversation
        for example, ids in zip(examples, tokens, strict=True)
        if abs(len(ids) - _COST_TOKENS) <= _COST_MARGIN and example.conversation.earlier
    ][:_COST_BATCH]
    alone = [replace(conversation, earlier=(), exchanges=0) for conversation in chosen]
    features = _cpu_ms(lambda: encoder.reader.features(chosen))
    return {
        "prompts_together": len(chosen),
        "cpu_ms": _cpu_ms(lambda: encoder.read(alone, [""] * len(alone))) / len(alone),
        "tokens_read": _tokens_read(encoder, alone),
        "with_earlier_cpu_ms": _cpu_ms(lambda: encoder.read(chosen, [""] * len(chosen)))
        / len(chosen),
        "with_earlier_tokens_read": _tokens_read(encoder, chosen),
        "features_cpu_ms": features / len(chosen),
    }


def _cpu_ms(call: Callable[[], object]) -> float:
    """The median of some calls, after one that is not counted."""
    call()
    took_s = []
    for _ in range(_COST_REPEATS):
        began_s = time.process_time()
        call()
        took_s.append(time.process_time() - began_s)
    return float(np.median(took_s)) * 1e3


def _tokens_read(encoder: Encoder, conversations: Sequence[Conversation]) -> float:
    return float(np.mean([len(ids) for ids, _ in encoder.reader.sequences(conversations)]))


def evaluate_all(data: Path, model: str) -> Numbers:
    """Scores on all data sets, the noise floor, and the cost."""
    text = data / "text"
    with Progress(console=Console(stderr=True)) as progress, tempfile.TemporaryDirectory() as other:
        task = progress.add_task("reading", total=None)

        def show(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        val = read_examples(text / "sharegpt_val.jsonl.gz")
        training = read_examples(text / "sharegpt_train.jsonl.gz")
        tagger: Tagger = load_tagger(model)
        result: Numbers = {
            "sharegpt_val": evaluate(tagger, val, training=training, stream=False, show=show),
            "streams": {"ShareGPT val": stream_scores(model, val)},
        }
        for name, path in convert(data, Path(other)).items():
            examples = read_examples(path)
            models = sorted({example.model_name for example in examples})
            for done, of in enumerate(models):
                show(f"{name}: {of}", done, len(models))
                own = [example for example in examples if example.model_name == of]
                result["streams"][f"{name}, {of}"] = stream_scores(model, own)
        lengths = np.array([float(example.output_tokens) for example in val])
        result["noise_floor"] = noise_floor(
            text / "seqsched_alpaca_train_10k_lengths.json.gz", lengths
        )
        result["cost"] = cost(model, val)
    return result


def tables(result: Numbers) -> Blocks:
    """Scores on ShareGPT, on streams, what is chance, and the cost."""
    val, floor, spent = result["sharegpt_val"], result["noise_floor"], result["cost"]
    header = (
        *("", "MAE", "error rate", "Acc-25", "Acc-50", "Acc-100", "Spearman", "Kendall"),
        *("pinball", "50 / 80 / 95% interval"),
    )
    scored = {"**shipped model**": val, **val["baselines"]}
    text = "\n".join(
        [
            made_by(result),
            f"**Other conversations of ShareGPT**, {val['count']:,} answers; nothing is learnt "
            "from them.\n",
            markdown_table(header, [_row(name, found) for name, found in scored.items()]),
            "**Serving models it never saw**, one answer after the other in the order of the file, "
            "each learnt after it was estimated. Scored are those after the first so many. In "
            "brackets, MAE over that of the running median of the serving model's own answers.\n",
            markdown_table(
                ("", "answers", "scored after", "MAE", "running median", "Spearman", header[-1]),
                [_stream_row(name, found) for name, found in result["streams"].items()],
            ),
            f"**How much is chance.** Of two draws of one answer (Vicuna, {floor['prompts']:,} "
            f"prompts, temperatures 0.5 and 0.7, {floor['mean_tokens']:.0f} tokens on average): "
            f"who knew each answer's distribution would be {floor['mae']:.1f} tokens off (within "
            f"50 of {floor['within_50']:.0%}), in the logarithm {floor['log_mae']:.2f}. Were "
            "ShareGPT's answers to scatter as much in the logarithm, nobody could be closer than "
            f"{floor['transferred_mae']:.1f} tokens (within 50 of "
            f"{floor['transferred_within_50']:.0%}); the model is {val['mae']:.1f} off (within 50 "
            f"of {val['acc_50']:.0%}), the constant median "
            f"{val['baselines']['constant_median']['mae']:.1f}.\n",
            f"**Cost** of prompts of about {_COST_TOKENS} tokens, one thread, "
            f"{spent['prompts_together']} together: {spent['cpu_ms']:.2f} ms of CPU per prompt, of "
            f"which it reads {spent['tokens_read']:.0f} tokens; with what came before it "
            f"{spent['with_earlier_cpu_ms']:.2f} ms and "
            f"{spent['with_earlier_tokens_read']:.0f} tokens. {spent['features_cpu_ms']:.2f} ms "
            "of it are the figures that need no reading.\n",
        ]
    )
    return {"tables": text}


def _row(name: str, found: dict[str, Any]) -> list[str]:
    s = Scores(**{key: found[key] for key in Scores.__slots__})
    return [
        name,
        f"{s.mae:.1f}",
        f"{s.error_rate:.2f}",
        *(f"{share:.1%}" for share in (s.acc_25, s.acc_50, s.acc_100)),
        *("" if ratio is None else f"{ratio:.3f}" for ratio in (s.spearman, s.kendall)),
        f"{s.pinball:.1f}",
        _intervals(s.coverage),
    ]


def _stream_row(name: str, found: dict[str, Any]) -> list[str]:
    ratio = found["mae"] / found["running_median_mae"]
    return [
        name,
        f"{found['requests']:,}",
        str(found["learnt"]),
        f"{found['mae']:.1f} ({ratio:.2f})",
        f"{found['running_median_mae']:.1f}",
        f"{found['spearman']:.2f}",
        _intervals(found["coverage"]),
    ]


def _intervals(coverage: dict[str, float]) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in coverage.values())


def arguments(parser: argparse.ArgumentParser) -> None:
    help_text = "Folder of another length model; results are then not written."
    parser.add_argument("--model", default="shipped", help=help_text)


def measure(options: argparse.Namespace) -> Numbers:
    """Evaluate the model on all data sets."""
    options.write = options.write and options.model == "shipped"
    return evaluate_all(options.data, options.model)


if __name__ == "__main__":
    BENCH.main(measure, tables, arguments)
