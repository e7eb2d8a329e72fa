"""`python -m foretell.services.backend.emulator`: one emulated engine."""

import asyncio
import contextlib
import random
from uuid import uuid4

from foretell.config import EmulatorSettings, load_profile
from foretell.engine import Twin
from foretell.latency.tables import profile_step_time
from foretell.model import EngineConfig, GpuProfile
from foretell.services.backend.emulator.answer import JobMaker
from foretell.services.backend.emulator.app import Engine, create_app
from foretell.services.backend.emulator.driver import EmulatorDriver
from foretell.services.backend.emulator.lengths import EmulatedLengths
from foretell.services.backend.emulator.server import serve_http
from foretell.services.backend.emulator.snapshot import SnapshotFeed
from foretell.services.backend.publisher import SnapshotPublisher
from foretell.services.process import runtime
from foretell.services.process.logs import setup_logging

MAX_QUEUE = 4096
"""Sequences held, running and waiting, beyond which requests get 503."""
MAX_BODY_BYTES = 4 << 20
_LEAST_STEP_RATIO = 0.1  # noise shortens no step below this share of the profile's time


def engine_config(settings: EmulatorSettings, profile: GpuProfile) -> EngineConfig:
    """The profile's configuration, changed by the settings; ValueError if no engine can run it."""
    config = profile.engine(
        model_name=settings.model_name or profile.name.partition("/")[2],
        total_blocks=settings.total_blocks,
        max_num_seqs=settings.max_num_seqs,
        max_num_scheduled_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        enable_prefix_caching=False,
        engine_version="emulated",
        emulated=True,
        co_schedules=settings.offline,
    )
    if config.blocks_for(config.max_model_len) > config.total_blocks:
        raise ValueError(
            f"max_model_len {config.max_model_len} needs {config.blocks_for(config.max_model_len)} "
            f"KV blocks, total_blocks is {config.total_blocks}"
        )
    return config


def make_driver(
    settings: EmulatorSettings,
    profile: GpuProfile,
    config: EngineConfig,
    feed: SnapshotFeed | None,
) -> EmulatorDriver:
    """Make the engine. Its noise differs between instances, but is the same in each run."""
    generator = random.Random(settings.name)

    def noise() -> float:
        return max(_LEAST_STEP_RATIO - 1.0, generator.gauss(0.0, settings.noise_ratio))

    return EmulatorDriver(
        Twin(config),
        profile_step_time(profile),
        speedup=settings.speedup,
        noise=noise,
        max_queue=MAX_QUEUE,
        feed=feed,
    )


async def serve(settings: EmulatorSettings, stop: asyncio.Event) -> None:
    """Run the engine and its HTTP API until `stop`."""
    try:
        profile = load_profile(settings.profile)
        config = engine_config(settings, profile)
    except ValueError as error:
        raise SystemExit(f"emulator: {error}") from error
    sock = runtime.bind(settings.host, settings.port)
    host, port = sock.getsockname()[:2]
    with contextlib.ExitStack() as resources:
        resources.enter_context(sock)
        feed = None
        if settings.snapshot_endpoint:
            publisher = SnapshotPublisher(settings.snapshot_endpoint)
            resources.callback(publisher.close)
            feed = SnapshotFeed(publisher.send, settings.name, uuid4().hex, config)
        driver = make_driver(settings, profile, config, feed)
        jobs = JobMaker(config, EmulatedLengths(), MAX_QUEUE)
        stepping = asyncio.create_task(driver.run())
        stepping.add_done_callback(lambda _: stop.set())
        try:
            await serve_http(
                create_app(Engine(config, driver, jobs, MAX_BODY_BYTES)),
                sock,
                stop,
                lambda: runtime.announce(
                    settings.ready_file,
                    url=f"http://{f'[{host}]' if ':' in host else host}:{port}",
                    model_name=config.model_name,
                ),
            )
        finally:
            stepping.cancel()
            # A loop that ended by itself has failed: its exception ends the process.
            with contextlib.suppress(asyncio.CancelledError):
                await stepping


def main() -> None:
    settings = runtime.load_settings(EmulatorSettings)
    setup_logging(settings.log_level, settings.log_format)
    runtime.run(lambda stop: serve(settings, stop))


if __name__ == "__main__":
    main()
