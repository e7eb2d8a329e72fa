"""Exports a trained model as the tagger serves it: ONNX with 8-bit weights."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from foretell.length.features import NAMES
from foretell.services.tagger.reading import TOKENIZER, WEIGHTS, Description
from foretell.tools.train.network import LengthModel

_INPUTS = ("ids", "segments", "mask", "features", "models")
_EXAMPLE_SHAPE = (2, 16)


def export(model: LengthModel, description: Description, tokenizer: Path, folder: Path) -> None:
    """Write weights, description and tokenizer into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "model.fp32.onnx"
    _write_onnx(model, whole)
    _forget_notes(whole)
    with _quiet():
        quantize_dynamic(
            whole,
            folder / WEIGHTS,
            op_types_to_quantize=["MatMul", "Gemm", "Gather"],
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
    whole.unlink()
    description.write(folder)
    (folder / TOKENIZER).write_bytes(tokenizer.read_bytes())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's notes on missing packages, and the quantizer's advice."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _forget_notes(path: Path) -> None:
    """Remove the exporter's notes: intermediate shapes, which the quantizer infers anew, and the
    origin of each operator, which names folders of the machine."""
    found = onnx.load(path)
    del found.graph.value_info[:]
    for node in found.graph.node:
        del node.metadata_props[:]
    onnx.save(found, path)


def _write_onnx(model: LengthModel, path: Path) -> None:
    model.eval()
    # Torch's own attention guards against fully masked rows. There are none here, and the guard
    # takes a third of the time in ONNX Runtime.
    model.encoder.set_attn_implementation("eager")
    batch, _ = _EXAMPLE_SHAPE
    example = (
        torch.randint(5, 100, _EXAMPLE_SHAPE),
        torch.zeros(_EXAMPLE_SHAPE, dtype=torch.int64),
        torch.ones(_EXAMPLE_SHAPE, dtype=torch.int64),
        torch.zeros(batch, len(NAMES)),
        torch.zeros(batch, dtype=torch.int64),
    )
    n, t = torch.export.Dim("n", min=1, max=4096), torch.export.Dim("t", min=2, max=512)
    shapes = ({0: n, 1: t}, {0: n, 1: t}, {0: n, 1: t}, {0: n}, {0: n})
    with _quiet():
        torch.onnx.export(
            model,
            example,
            path,
            input_names=list(_INPUTS),
            output_names=["logits"],
            dynamic_shapes=shapes,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
