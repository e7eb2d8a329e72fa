"""`foretell profile measure`: a GPU profile from a live endpoint, driven over HTTP alone."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from foretell.model import GpuProfile
from foretell.tools.profiles.endpoint import Endpoint, Facts, connected
from foretell.tools.profiles.fit import Fit, FitError, Window, fit_windows
from foretell.tools.profiles.imports import ProfileError
from foretell.tools.profiles.options import MeasureOptions
from foretell.tools.profiles.plan import Experiment, Limits, plan
from foretell.tools.profiles.session import Session

_DEFAULTS = GpuProfile("", (), 0.0, "")  # of limits that nobody told

Progress = Callable[[str], None]
"""Called with what is measured next."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The profile, and what it is made from."""

    profile: GpuProfile
    fit: Fit
    windows: tuple[Window, ...]
    requests: int


async def measure(options: MeasureOptions, progress: Progress = lambda _: None) -> Measurement:
    """Measure the endpoint for about `options.seconds`; ProfileError where that cannot be done."""
    async with connected(options.url, options.api_key) as endpoint:
        return await _measure(endpoint, options, progress)


async def _measure(endpoint: Endpoint, options: MeasureOptions, progress: Progress) -> Measurement:
    started = time.monotonic()
    facts = await endpoint.facts(options.model)
    longest = options.max_model_len or facts.max_model_len
    if not longest:
        raise ProfileError("the endpoint does not say its max_model_len: give --max-model-len")
    if facts.engines > 1:
        raise ProfileError(
            f"the endpoint has {facts.engines} engines (data parallel): measure one by itself"
        )
    if facts.requests:
        raise ProfileError(
            f"the endpoint serves {facts.requests} other request(s): measure one that is idle"
        )
    profile = _unmeasured(options, facts, longest)
    if profile.max_num_seqs < 2:
        raise ProfileError("an engine that runs one sequence at a time has none beside it to count")
    session = Session(
        endpoint,
        longest=longest,
        budget=profile.max_num_batched_tokens,
        rng=random.Random(),  # of the system's entropy: what an earlier run sent is cached
    )
    windows: list[Window] = []
    try:
        async with asyncio.timeout(options.seconds):
            progress("warming up")
            prefill_tokens_per_s = await session.warm_up()
            limits = Limits(
                max_model_len=longest,
                capacity_tokens=profile.total_blocks * profile.block_size_tokens,
                max_concurrency=min(options.max_concurrency, profile.max_num_seqs),
                prefill_tokens_per_s=prefill_tokens_per_s,
                seconds=options.seconds,
            )
            await _rounds(session, plan(limits), options.rounds, windows, progress)
    except TimeoutError:
        pass  # what was measured until now is what there is
    try:
        fit = fit_windows(windows)
    except FitError as error:
        raise ProfileError(f"{error}; give it more --seconds than {options.seconds:g}") from error
    took_s = time.monotonic() - started
    made = replace(
        profile,
        coefficients_s=fit.coefficients_s,
        relative_residual=fit.relative_residual,
        provenance=_provenance(options, facts, fit, windows, session, took_s),
    )
    return Measurement(made, fit, tuple(windows), session.requests)


async def _rounds(
    session: Session,
    experiments: list[Experiment],
    rounds: int,
    windows: list[Window],
    progress: Progress,
) -> None:
    """Do the experiments `rounds` times, adding to `windows`."""
    for number in range(rounds):
        useless = []
        for experiment in experiments:
            progress(f"round {number + 1}: {experiment}")
            found = await session.run(experiment)
            windows += found
            if not found:
                useless.append(experiment)
        for experiment in useless:  # more streams than the engine runs at once, most likely
            experiments.remove(experiment)


def _unmeasured(options: MeasureOptions, facts: Facts, longest: int) -> GpuProfile:
    """All of the profile that is not measured: given, told by the endpoint, or a default."""
    return GpuProfile(
        name=options.name or f"measured/{facts.model.rstrip('/').rpartition('/')[2]}",
        coefficients_s=(),
        relative_residual=0.0,
        provenance="",
        block_size_tokens=options.block_size
        or facts.block_size_tokens
        or _DEFAULTS.block_size_tokens,
        total_blocks=options.kv_blocks or facts.kv_blocks,
        max_num_seqs=options.max_num_seqs or _DEFAULTS.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens or _DEFAULTS.max_num_batched_tokens,
        max_model_len=longest,
    )


def _provenance(
    options: MeasureOptions,
    facts: Facts,
    fit: Fit,
    windows: list[Window],
    session: Session,
    took_s: float,
) -> str:
    kinds = Counter(window.kind for window in windows)
    residuals = ", ".join(f"{kind} {error:.1%}" for kind, error in fit.residual_of.items())
    assumed = [
        name
        for name, known in (
            ("block size", options.block_size or facts.block_size_tokens),
            ("max_num_seqs", options.max_num_seqs),
            ("max_num_batched_tokens", options.max_num_batched_tokens),
        )
        if not known
    ]
    told = f" Assumed, vLLM's default: {', '.join(assumed)}." if assumed else ""
    model = facts.model.rpartition("/")[2] if facts.model.startswith("/") else facts.model
    return (
        f"Measured over HTTP by `foretell profile measure` on {time.strftime('%Y-%m-%d')}: "
        f"{model} on {facts.engine}, {took_s:.0f} s, {session.requests} requests, "
        f"{len(windows)} windows ({kinds['lone']} of lone prompts, {kinds['beside']} of prompts "
        f"beside a stream, {kinds['decode']} of up to {session.most_streams} decoding streams). "
        f"Median error of a window: {residuals}. A request took {fit.request_s * 1e3:.2f} ms and "
        f"{fit.request_token_s * 1e6:.2f} us per prompt token outside the engine's steps; a step's "
        f"time includes what of the host is not hidden behind the device.{told}"
    )
