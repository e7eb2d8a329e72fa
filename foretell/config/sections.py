"""What operators decide: the sections of a cluster file, described once.

A process's own settings (`foretell.config.settings`) inherit the fields of its section, so a name
and its meaning are the same in the file, in an environment variable and as a flag.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from foretell.config.policies import build_policy
from foretell.config.profiles import check_profile

LogLevel = Literal["debug", "info", "warning", "error"]
Profile = Annotated[str, AfterValidator(check_profile)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """One section; a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid")


def _check_name(name: str) -> str:
    build_policy(name, {})
    return name


PolicyName = Annotated[
    str,
    AfterValidator(_check_name),
    Field(
        description=(
            "Name of the placement policy: `slo`, `least_outstanding` or `round_robin`. For "
            "comparison, `baselines.NAME` names a policy of the laboratory."
        ),
        examples=["slo", "least_outstanding", "round_robin"],
    ),
]

PolicyParameters = Annotated[
    dict[str, Any],
    Field(description="Parameters of the policy itself, such as `tolerance` of `slo`."),
]


class PlacementOptions(Section):
    """How requests wait and which engines are asked, whatever the policy."""

    candidates: int = Field(
        16,
        ge=0,
        description="Number of predictors that are asked about one placement; 0 asks all.",
    )
    largest_last_ratio: float = Field(
        0.0,
        ge=0,
        lt=1,
        description=(
            "Share of the requests, the largest by their predicted output, that engines with "
            "`--scheduling-policy priority` serve last; 0 leaves the order alone."
        ),
    )
    hold_max_s: float = Field(
        10.0,
        ge=0,
        description=(
            "Longest time that a policy which holds requests (`baselines.late_binding`, "
            "`baselines.foreseen`) keeps one in the scheduler."
        ),
    )
    hold_recheck_ms: float = Field(
        50.0,
        gt=0,
        description="Pause before the predictors are asked again about a request that is held.",
    )
    turn_deadline_ms: float = Field(
        500.0,
        gt=0,
        description=(
            "Longest time that a request waits for the placements before it; then it is placed "
            "without asking the predictors."
        ),
    )


class PolicySection(PlacementOptions):
    """Which engine gets a request."""

    name: PolicyName = "slo"
    parameters: PolicyParameters = Field(default_factory=dict)

    @field_validator("parameters")
    @classmethod
    def _are_known(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "name" in info.data:
            build_policy(info.data["name"], value)
        return value


class TargetsSection(Section):
    """Latency targets of requests that bring none in their headers."""

    ttft_target_ms: float = Field(
        0.0,
        ge=0,
        description=(
            "Target for the time to the first token of requests without the header "
            "`x-foretell-ttft-target-ms`; 0 sets none."
        ),
    )
    tpot_target_ms: float = Field(
        0.0,
        ge=0,
        description=(
            "Target for the time per output token after the first, of requests without the "
            "header `x-foretell-tpot-target-ms`; 0 sets none."
        ),
    )
    late_requests: Literal["serve", "reject"] = Field(
        "serve",
        description=(
            "What happens to a request that no engine is predicted to begin to answer within its "
            "TTFT target: it is served nevertheless, or rejected with status 429. The header "
            "`x-foretell-when-late` overrides this."
        ),
    )


class SchedulerOptions(Section):
    """What the OpenAI endpoint accepts, and how long it waits for others."""

    max_body_bytes: int = Field(4 << 20, gt=0, description="Largest request body accepted.")
    max_concurrent_requests: int = Field(
        4096, gt=0, description="Requests in progress beyond which new ones get status 429."
    )
    max_attempts: int = Field(
        3, gt=0, description="Engines tried for one request before its first token."
    )
    tagger_deadline_ms: float = Field(
        30.0, gt=0, description="Longest time that a request waits for the tagger's estimate."
    )
    predictor_deadline_ms: float = Field(
        100.0, gt=0, description="Longest time that a request waits for the predictors' answers."
    )
    connect_timeout_s: float = Field(2.0, gt=0, description="Longest time to connect to an engine.")
    request_timeout_s: float = Field(
        600.0, gt=0, description="Longest silence of an engine while it answers a request."
    )
    health_interval_s: float = Field(
        0.5, gt=0, description="Pause between two health probes of an engine."
    )
    health_timeout_s: float = Field(
        3.0, gt=0, description="Longest time that a health probe may take."
    )
    health_failures: int = Field(
        3, gt=0, description="Failed health probes in a row after which an engine counts as down."
    )
    drain_timeout_s: float = Field(
        25.0, gt=0, description="Time that requests in progress get to end at shutdown."
    )
    request_log_max_bytes: int = Field(
        64 << 20,
        gt=0,
        description="Size at which a request log is rotated; one old file is kept.",
    )
    tokenizer: str = Field(
        "",
        description=(
            "tokenizer.json, or the folder that holds it, to count the tokens of prompts with; "
            "empty: their number is estimated from the characters by a learned ratio."
        ),
    )


class TaggerOptions(Section):
    """The service that estimates output lengths from prompts."""

    model: str = Field(
        "shipped",
        description=(
            "Folder of a length model made by `foretell train-tagger`; `shipped` is the one that "
            "comes with the package, `none` estimates from finished requests alone."
        ),
    )
    checkpoint: str = Field(
        "",
        description=(
            "Folder of a Hugging Face sequence-regression checkpoint that is used instead of a "
            "length model; empty: none."
        ),
    )
    checkpoint_target: Literal["tokens", "log_tokens"] = Field(
        "tokens",
        description="What the checkpoint predicts: tokens, or the natural logarithm of tokens.",
    )
    threads: int = Field(1, gt=0, description="Threads that the length model computes with.")
    batch_ms: float = Field(
        10.0,
        gt=0,
        description=(
            "Longest time that reading one batch of prompts may take; batches are made smaller "
            "where reading is slower."
        ),
    )
