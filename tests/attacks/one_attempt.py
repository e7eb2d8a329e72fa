"""A scheduler whose engines get one attempt, so that what a failure becomes is seen at once."""

from foretell.config import SchedulerSettings
from foretell.placement import PlacementConfig
from foretell.services.process import runtime
from foretell.services.scheduler.__main__ import Tuning, serve

if __name__ == "__main__":
    settings = runtime.load_settings(SchedulerSettings)
    tuning = Tuning(placement=PlacementConfig(max_attempts=1, instance_wait_s=0.0))
    runtime.run(lambda stop: serve(settings, stop, tuning=tuning))
