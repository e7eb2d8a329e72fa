"""How far off are predictions, at 70% load?"""

from typing import Any

from foretell.tools.check.context import Context
from foretell.tools.check.engine_args import LENGTH_KEY
from foretell.tools.live.measure import LiveOptions, measure
from foretell.tools.live.report import FORETELL, all_pairs, errors_of, own_pairs

UTILISATION = 0.7


async def truth(context: Context, seconds: float) -> dict[str, Any]:
    """Load the first engine alone, as a scheduler would, with lengths that only it knows."""
    options = LiveOptions(
        context.engines.urls[0],
        context.engines.predictors[0],
        seconds=seconds,
        secret_key=LENGTH_KEY,
        utilisation=UTILISATION,
        seed=context.options.seed,
        lengths=context.lengths,
    )

    def show(what: str, done: int, total: int) -> None:
        context.say(f"truth: {what}, {done} of {total}" if total else f"truth: {what}, {done}")

    recording = await measure(options, show)
    deployed = errors_of({**all_pairs(recording), FORETELL: own_pairs(recording)})
    return {**recording.about, "as_deployed": deployed}
