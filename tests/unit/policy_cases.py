"""Candidates and a request for the tests of placement policies."""

from foretell.model import LengthEstimate, Load, Prediction, RequestSpec
from foretell.policy import Candidate

REQUEST = RequestSpec("r0", prompt_tokens=64, max_tokens=0, length=LengthEstimate(100.0))


def load(
    used_blocks: int = 0,
    running: int = 0,
    waiting_prefill_blocks: int = 0,
    total_blocks: int = 1000,
) -> Load:
    return Load(
        running=running,
        waiting=0,
        reserved=0,
        used_blocks=used_blocks,
        total_blocks=total_blocks,
        waiting_prefill_blocks=waiting_prefill_blocks,
        max_num_seqs=64,
    )


def loaded(
    instance_id: str,
    used_blocks: int = 0,
    running: int = 0,
    waiting_prefill_blocks: int = 0,
    outstanding: int = 0,
) -> Candidate:
    return Candidate(
        instance_id, outstanding, load=load(used_blocks, running, waiting_prefill_blocks)
    )


def predicted(
    instance_id: str,
    e2e_s: float,
    ttft_s: float = 0.1,
    outstanding: int = 0,
    calibration_steps: int = 1000,
    added_e2e_s: float | None = 0.0,
    added_ttft_s: float | None = 0.0,
    preempted_s: float = 0.0,
    running: int = 64,
    total_blocks: int = 1000,
) -> Candidate:
    """Predictions with load; all seats are taken unless `running` says otherwise."""
    answer = Prediction(
        instance_id,
        ttft_s,
        e2e_s,
        tpot_s=0.01,
        preempted_s=preempted_s,
        snapshot_age_s=0.0,
        load=load(running=running, total_blocks=total_blocks),
        calibration_steps=calibration_steps,
        added_ttft_s=added_ttft_s,
        added_e2e_s=added_e2e_s,
    )
    return Candidate(instance_id, outstanding, load=answer.load, prediction=answer)


def silent(instance_id: str, outstanding: int = 0) -> Candidate:
    """A candidate whose predictor did not answer."""
    return Candidate(instance_id, outstanding)
