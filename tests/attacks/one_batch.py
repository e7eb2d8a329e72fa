"""A batch service, with a client in its own event loop that asks `/health` all the time."""

from functools import partial

from one_attempt import run

from foretell.config import BatchSettings
from foretell.services.batch.__main__ import serve
from foretell.services.process.runtime import load_settings

if __name__ == "__main__":
    settings = load_settings(BatchSettings)
    run(partial(serve, settings), settings.ready_file)
