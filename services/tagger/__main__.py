"""`python -m services.tagger`: settings from flags and FORETELL_TAGGER_* variables."""

import asyncio

from foretell.settings import TaggerSettings
from services import runtime
from services.tagger import checkpoint
from services.tagger.server import serve


def main() -> None:
    settings = runtime.load_settings(TaggerSettings)
    runtime.setup_logging(settings.log_level)
    regressor = (
        checkpoint.load(settings.checkpoint, settings.checkpoint_target)
        if settings.checkpoint
        else None
    )

    async def serve_until(stop: asyncio.Event) -> None:
        await serve(settings, regressor, stop)

    runtime.run(serve_until, with_parent=settings.die_with_parent)


if __name__ == "__main__":
    main()
