"""`python -m foretell.services.tagger`: settings from flags and FORETELL_TAGGER_* variables."""

import asyncio
import os
from contextlib import ExitStack
from typing import Any

from foretell.config import TaggerSettings
from foretell.services.process import runtime
from foretell.services.process.logs import setup_logging
from foretell.services.tagger import checkpoint
from foretell.services.tagger.models import RegressorModel, ServedLengthModel, folder_of
from foretell.services.tagger.server import MAX_PROMPT_CHARS, serve

_NICENESS = 19
"""The lowest priority above SCHED_IDLE: no request waits for the tagger, unless configured so."""


def load_model(settings: TaggerSettings, ending: ExitStack) -> ServedLengthModel[Any] | None:
    """Load the model that the settings name, if any; `ending` will end the process that it starts.

    Raises SystemExit with the reason if it cannot serve.
    """
    if settings.checkpoint:
        if settings.model not in ("shipped", "none"):
            raise SystemExit("tagger: model and checkpoint are two models; name one")
        regressor = checkpoint.load(settings.checkpoint, settings.checkpoint_target)
        return RegressorModel(regressor, MAX_PROMPT_CHARS)
    if settings.model == "none":
        return None
    try:
        # Without a model the tagger needs neither numpy nor a runtime.
        from foretell.length.adapted import EncoderModel  # noqa: PLC0415
        from foretell.services.tagger.apart import EncoderApart  # noqa: PLC0415

        encoder = EncoderApart(folder_of(settings.model), threads=settings.threads)
        ending.callback(encoder.kill)
        return EncoderModel(encoder)
    except ImportError as error:
        raise SystemExit(
            f"tagger: {error}; pip install -e '.[tagger]' in the checkout, or set "
            "FORETELL_TAGGER_MODEL=none"
        ) from error
    except (OSError, ValueError) as error:
        raise SystemExit(f"tagger model {settings.model!r}: {error}") from error


def main() -> None:
    settings = runtime.load_settings(TaggerSettings)
    setup_logging(settings.log_level, settings.log_format)
    with ExitStack() as ending:
        model = load_model(settings, ending)
        os.nice(_NICENESS)

        async def serve_until(stop: asyncio.Event) -> None:
            await serve(settings, model, stop)

        runtime.run(serve_until)


if __name__ == "__main__":
    main()
