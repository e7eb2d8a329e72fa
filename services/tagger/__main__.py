"""`python -m services.tagger`: settings from flags and FORETELL_TAGGER_* variables."""

import asyncio
from pathlib import Path
from typing import Any

from foretell.settings import TaggerSettings
from services import runtime
from services.tagger import checkpoint
from services.tagger.models import LengthModel, RegressorModel
from services.tagger.server import serve


def load_model(settings: TaggerSettings) -> LengthModel[Any] | None:
    """The model that the settings name, if any; `SystemExit` says why it cannot serve."""
    if settings.model and settings.checkpoint:
        raise SystemExit("tagger: model and checkpoint are two models; name one")
    if settings.checkpoint:
        regressor = checkpoint.load(settings.checkpoint, settings.checkpoint_target)
        return RegressorModel(regressor, settings.max_prompt_chars)
    if not settings.model:
        return None
    # Without a model the tagger needs neither numpy nor a runtime.
    from services.tagger.adapted import EncoderModel  # noqa: PLC0415
    from services.tagger.encoder import Encoder  # noqa: PLC0415

    try:
        return EncoderModel(Encoder(Path(settings.model), threads=settings.threads))
    except (OSError, ValueError) as error:
        raise SystemExit(f"tagger model {settings.model!r}: {error}") from error


def main() -> None:
    settings = runtime.load_settings(TaggerSettings)
    runtime.setup_logging(settings.log_level)
    model = load_model(settings)

    async def serve_until(stop: asyncio.Event) -> None:
        await serve(settings, model, stop)

    runtime.run(serve_until, with_parent=settings.die_with_parent)


if __name__ == "__main__":
    main()
