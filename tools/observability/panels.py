"""The panels of the dashboards: what is asked of Prometheus, and what the answer means."""

from foretell.tools.observability.panel import (
    WINDOW,
    Dashboard,
    Panel,
    at,
    gauge,
    heatmap,
    quantiles,
    rate,
)

_AGO = "1m"
_FAILED = "{status=~'5..'}"
_MET = "{outcome='met'}"
_PROMPTS = "{kind='input'}"
_SCHEDULERS = "{job='scheduler'}"

_ANSWERED = rate("foretell_e2e_seconds_count")
_OVERVIEW = (
    Panel(
        "Requests",
        "reqps",
        "Requests ended, by status.",
        ((rate("foretell_requests_total", "status"), "{{status}}"),),
    ),
    Panel(
        "Errors",
        "percentunit",
        "Share of requests that ended with a status of 500 or above.",
        (
            (
                f"({rate('foretell_requests_total', where=_FAILED)} or vector(0)) / "
                f"{rate('foretell_requests_total')}",
                "5xx",
            ),
        ),
        threshold=0.05,
    ),
    Panel(
        "In progress",
        "short",
        "Requests that are being answered.",
        (("sum(foretell_requests_in_progress)", "requests"),),
    ),
    Panel(
        "TTFT",
        "s",
        "Time from placement to the first token.",
        quantiles("foretell_ttft_seconds", "class"),
    ),
    Panel(
        "TPOT",
        "s",
        "Time per output token after the first.",
        quantiles("foretell_tpot_seconds", "class"),
    ),
    Panel(
        "End-to-end latency",
        "s",
        "Time from placement to the last token.",
        quantiles("foretell_e2e_seconds", "class"),
    ),
    Panel(
        "Goodput",
        "percentunit",
        "Share of the requests with targets that met them.",
        (
            (
                f"({rate('foretell_slo_requests_total', where=_MET)} or vector(0)) / "
                f"{rate('foretell_slo_requests_total')}",
                "within targets",
            ),
        ),
    ),
    Panel(
        "First tokens",
        "s",
        "How many requests have their first token after how long.",
        heatmap("foretell_ttft_seconds"),
        heat=True,
    ),
    Panel(
        "Whole answers",
        "s",
        "How many requests have their last token after how long.",
        heatmap("foretell_e2e_seconds"),
        heat=True,
    ),
    Panel(
        "Instances",
        "short",
        "Instances that are listed, and those that answer health probes.",
        (
            ("count(count by (instance_id) (foretell_instance_healthy))", "listed"),
            ("sum(min by (instance_id) (foretell_instance_healthy))", "up"),
        ),
    ),
    Panel(
        "Output tokens by class",
        "short",
        "Tokens of answers a second; offline requests are those of the last priority.",
        ((rate("foretell_output_tokens_total", "class"), "{{class}}"),),
    ),
    Panel(
        "Tokens by tenant",
        "short",
        "Tokens of prompts and answers a second, by caller.",
        ((rate("foretell_tenant_tokens_total", "tenant"), "{{tenant}}"),),
    ),
)
_ERROR_LEVELS = (0.1, 0.5, 0.9)
_PREDICTION = (
    Panel(
        "Error of TTFT",
        "percentunit",
        "(predicted - actual) / actual. The middle line is the bias, the others hold four fifths.",
        quantiles("foretell_ttft_prediction_error_ratio", levels=_ERROR_LEVELS),
    ),
    Panel(
        "Error of end-to-end latency",
        "percentunit",
        "(predicted - actual) / actual.",
        quantiles("foretell_e2e_prediction_error_ratio", levels=_ERROR_LEVELS),
    ),
    Panel(
        "Error of output lengths at placement",
        "percentunit",
        "(predicted - actual) / actual, of the expected length that placements counted with.",
        quantiles("foretell_output_tokens_prediction_error_ratio", levels=_ERROR_LEVELS),
    ),
    Panel(
        "Error of the tagger",
        "percentunit",
        "(predicted - actual) / actual, of the lengths that the tagger told.",
        quantiles("foretell_tagger_error_ratio", "source", (0.5, 0.9)),
    ),
    Panel(
        "Calibration of length quantiles",
        "percentunit",
        "Share of answers no longer than the believed median, P75 and P95. Each line belongs at "
        "the level that it is named after.",
        tuple(
            (
                f"{rate('foretell_output_tokens_level_ratio_bucket', where=at(level))}"
                f" / {rate('foretell_output_tokens_level_ratio_count')}",
                f"{100 * level:g}%",
            )
            for level in (0.5, 0.75, 0.95)
        ),
    ),
    Panel(
        "Drift",
        "percentunit",
        "Median error of end-to-end latency of each instance: away from 0 for long, its "
        "predictions are off to one side.",
        quantiles("foretell_e2e_prediction_error_ratio", "instance_id", (0.5,)),
    ),
    Panel(
        "Steps learned from",
        "short",
        "Engine steps that each predictor has calibrated its step times with.",
        gauge("foretell_calibration_steps"),
    ),
    Panel(
        "Error of step times",
        "percentunit",
        "Mean absolute relative error over about the last 64 steps.",
        (("foretell_step_time_error_ratio", "{{instance_id}}"),),
    ),
    Panel(
        "Step times learned anew",
        "short",
        "Times in the last hour that an engine's step times changed for good.",
        (("increase(foretell_step_time_changes_total[1h])", "{{instance_id}}"),),
    ),
)
_ENGINES = (
    Panel(
        "Healthy",
        "short",
        "1 while health probes succeed, as the most pessimistic replica sees it.",
        (("min by (instance_id) (foretell_instance_healthy)", "{{instance_id}}"),),
    ),
    Panel("Running", "short", "Requests that run.", gauge("foretell_running_requests")),
    Panel(
        "Waiting",
        "short",
        "Requests in the queue and on their way to it.",
        gauge("foretell_waiting_requests"),
    ),
    Panel(
        "KV cache",
        "percentunit",
        "Share of KV blocks in use.",
        gauge("foretell_kv_used_ratio"),
        threshold=0.95,
    ),
    Panel(
        "KV cache by class",
        "percentunit",
        "Share of KV blocks that offline and online requests hold.",
        (
            ("foretell_kv_offline_ratio", "{{instance_id}} offline"),
            ("foretell_kv_used_ratio - foretell_kv_offline_ratio", "{{instance_id}} online"),
        ),
    ),
    Panel(
        "Preemptions",
        "short",
        "Preemptions a second of requests that have ended.",
        ((f"rate(foretell_preemptions_total[{WINDOW}])", "{{instance_id}}"),),
    ),
    Panel(
        "Prefix cache hits",
        "percentunit",
        "Share of prompt tokens that the prefix cache held.",
        (
            (
                f"{rate('foretell_cached_prompt_tokens_total', 'instance_id')} / "
                f"({rate('foretell_prompt_tokens_total', 'instance_id')} > 0)",
                "{{instance_id}}",
            ),
        ),
    ),
    Panel(
        "Prefix cache hits by class",
        "percentunit",
        "The same, of online and of offline requests.",
        (
            (
                f"{rate('foretell_cached_prompt_tokens_total', 'class')} / "
                f"({rate('foretell_prompt_tokens_total', 'class')} > 0)",
                "{{class}}",
            ),
        ),
    ),
    Panel(
        "Predicted TTFT",
        "s",
        "TTFT that a request with a prompt of 256 tokens would get if it came now.",
        gauge("foretell_predicted_ttft_seconds"),
    ),
    Panel(
        "Predicted e2e latency",
        "s",
        "The same request, with an answer of 256 tokens.",
        gauge("foretell_predicted_e2e_seconds"),
    ),
)
_PLACEMENT = (
    Panel(
        "Shares",
        "percentunit",
        "Share of the answers that each instance gave.",
        (
            (
                f"{rate('foretell_e2e_seconds_count', 'instance_id')} / on() group_left() "
                f"{_ANSWERED}",
                "{{instance_id}}",
            ),
        ),
    ),
    Panel(
        "Time to place",
        "s",
        "What placing adds to a request's latency.",
        quantiles("foretell_placement_seconds"),
    ),
    Panel(
        "Without answers",
        "short",
        "Answers of predictors a second that placements had to do without.",
        ((f"{rate('foretell_degraded_total')} or vector(0)", "missing"),),
    ),
    Panel(
        "CPU of a request",
        "s",
        "CPU time of all schedulers for each request: placing, relaying and all else.",
        (
            (
                f"{rate('process_cpu_seconds_total', where=_SCHEDULERS)} / "
                f"({rate('foretell_requests_total')} > 0)",
                "schedulers",
            ),
        ),
    ),
    Panel(
        "Moved",
        "short",
        "Attempts a second that failed before a first token, and requests called back from a "
        "queue.",
        (
            (f"{rate('foretell_retries_total')} or vector(0)", "failed"),
            (f"{rate('foretell_recalls_total')} or vector(0)", "called back"),
        ),
    ),
    Panel(
        "Lengths revised",
        "percentunit",
        "Share of the tagger's answers that changed what was believed when a request was placed.",
        (
            (
                f"{rate('foretell_lengths_revised_total')} / "
                f"({rate('foretell_tagger_requests_total')} > 0)",
                "revised",
            ),
        ),
    ),
)


def _decided(metric: str, by: str = "") -> str:
    """What the active replica shows; a standby shows what it last decided."""
    active = f"{metric} and on (instance) (foretell_provisioner_active == 1)"
    return f"max{f' by ({by})' if by else ''} ({active})"


_PROVISIONING = (
    Panel(
        "Instances",
        "short",
        "Instances that there should be, and those that there are, by phase.",
        (
            (_decided("foretell_desired_replicas"), "desired"),
            (_decided("foretell_provisioned_instances", "phase"), "{{phase}}"),
        ),
    ),
    Panel(
        "Reason",
        "short",
        "What decided the number.",
        ((_decided("foretell_desired_reason", "reason"), "{{reason}}"),),
    ),
    Panel(
        "Arrivals and forecast",
        "reqps",
        "Requests that come, and those that were expected a cold start ahead.",
        (
            (rate("foretell_provisioner_arrivals_total"), "arrivals"),
            (_decided("foretell_forecast_arrivals"), "forecast"),
        ),
    ),
    Panel(
        "Age of the numbers",
        "s",
        "Age of the oldest number that the decision rests on.",
        ((_decided("foretell_desired_age_seconds"), "age"),),
    ),
    Panel(
        "Cold start",
        "s",
        "P90 of the time that instances took to become ready.",
        ((_decided("foretell_cold_start_seconds"), "P90"),),
    ),
    Panel(
        "Failures",
        "short",
        "Orders that failed and instances that never got ready, in the last hour.",
        (
            ("sum(increase(foretell_driver_failures_total[1h]))", "orders"),
            ("sum(increase(foretell_given_up_total[1h]))", "never ready"),
        ),
    ),
)
_OFFLINE = (
    Panel(
        "Batches",
        "short",
        "Batches that have not ended, by status.",
        (("sum by (status) (foretell_batches) or vector(0)", "{{status}}"),),
    ),
    Panel(
        "Requests left",
        "short",
        "Requests of batches in progress that have not ended.",
        (("sum(foretell_batch_requests_left)", "left"),),
    ),
    Panel(
        "Requests of batches",
        "reqps",
        "Requests of batches that have ended, by outcome.",
        (
            (
                f"{rate('foretell_batch_requests_total', 'outcome')} or vector(0)",
                "{{outcome}}",
            ),
        ),
    ),
    Panel(
        "Tokens of batches",
        "short",
        "Tokens a second of prompts and answers of requests of batches.",
        ((f"{rate('foretell_batch_tokens_total', 'kind')} or vector(0)", "{{kind}}"),),
    ),
    Panel(
        "Prompts of batches found cached",
        "percentunit",
        "Share of the prompt tokens of batches that engines say they found in a prefix cache.",
        (
            (
                f"{rate('foretell_batch_cached_tokens_total')} / "
                f"({rate('foretell_batch_tokens_total', where=_PROMPTS)} > 0) or vector(0)",
                "cached",
            ),
        ),
    ),
    Panel(
        "Predicted end of batches",
        "s",
        "Time until all batches in progress are predicted to be done.",
        (("max(foretell_batches_left_seconds)", "left"),),
    ),
    Panel(
        "Density of batches",
        "short",
        "Time to compute over time to read the KV cache, of the batch whose order was found last.",
        (("max(foretell_batch_density_ratio)", "density"),),
    ),
    Panel(
        "Window",
        "short",
        "Requests of batches that may be on their way, and those that are.",
        (
            ("sum(foretell_batch_window)", "may be"),
            ("sum(foretell_batch_requests_in_flight)", "are"),
        ),
    ),
    Panel(
        "Online targets met, beside batches",
        "percentunit",
        "Share of the requests with targets that met them; those of batches have none.",
        (
            (
                f"({rate('foretell_slo_requests_total', where=_MET)} or vector(0)) / "
                f"({rate('foretell_slo_requests_total')} > 0)",
                "met",
            ),
        ),
    ),
    Panel(
        "Promises",
        "short",
        "Batches that have ended, by whether they did by the time first promised.",
        (("sum by (outcome) (foretell_batch_promises_total) or vector(0)", "{{outcome}}"),),
    ),
    Panel(
        "Found nobody",
        "short",
        "Times a second that a request of a batch found nobody to answer it.",
        ((f"{rate('foretell_batch_tries_again_total')}", "sent again"),),
    ),
)
_VLLM = (
    Panel(
        "Requests in vLLM",
        "short",
        "Requests that run and wait, as each engine says itself.",
        (
            ("sum by (instance_id) (vllm:num_requests_running)", "{{instance_id}} run"),
            ("sum by (instance_id) (vllm:num_requests_waiting)", "{{instance_id}} wait"),
        ),
    ),
    Panel(
        "KV cache in vLLM",
        "percentunit",
        "Share of KV blocks in use, as each engine says itself.",
        (("max by (instance_id) (vllm:kv_cache_usage_perc)", "{{instance_id}}"),),
        threshold=0.95,
    ),
    Panel(
        "Time in the queue",
        "s",
        "From a request's arrival at its engine until it is scheduled.",
        quantiles("vllm:request_queue_time_seconds", "model_name"),
    ),
    Panel(
        "Prefill",
        "s",
        "From then until its first token.",
        quantiles("vllm:request_prefill_time_seconds", "model_name"),
    ),
    Panel(
        "Decode",
        "s",
        "From its first token until its last.",
        quantiles("vllm:request_decode_time_seconds", "model_name"),
    ),
    Panel(
        "Finish reasons",
        "reqps",
        "Requests that engines have ended, by why.",
        ((rate("vllm:request_success_total", "finished_reason"), "{{finished_reason}}"),),
    ),
    Panel(
        "Lengths of prompts",
        "short",
        "How many requests have prompts of how many tokens.",
        heatmap("vllm:request_prompt_tokens"),
        heat=True,
    ),
    Panel(
        "Lengths of answers",
        "short",
        "How many requests have answers of how many tokens.",
        heatmap("vllm:request_generation_tokens"),
        heat=True,
    ),
    Panel(
        "Tokens in vLLM",
        "short",
        "Tokens a second, as each engine says itself.",
        (
            (rate("vllm:prompt_tokens_total", "model_name"), "{{model_name}} read"),
            (rate("vllm:generation_tokens_total", "model_name"), "{{model_name}} made"),
        ),
    ),
    Panel(
        "TTFT in vLLM",
        "s",
        "From a request's arrival at its engine until its first token; what ours has more is "
        "placing and the way.",
        quantiles("vllm:time_to_first_token_seconds", "model_name"),
    ),
)
CHOOSES_FROM = {
    "namespace": "foretell_build_info",
    "model_name": "foretell_requests_total",
    "instance_id": "foretell_instance_healthy",
    "tenant": "foretell_tenant_tokens_total",
}
"""The metric whose values of a label a variable offers."""
ANNOTATIONS = (
    (
        "Start of a process",
        "blue",
        f"sum by (job, version) (foretell_build_info unless foretell_build_info offset {_AGO})",
    ),
    (
        "Scaling",
        "orange",
        f"max(changes(foretell_desired_replicas[{WINDOW}])) > 0",
    ),
)
"""Moments that all dashboards mark: title, colour and PromQL that has a value at them."""
DASHBOARDS = (
    Dashboard("foretell-overview", "Overview", _OVERVIEW),
    Dashboard("foretell-prediction", "Prediction against reality", _PREDICTION),
    Dashboard("foretell-engines", "Engines", _ENGINES),
    Dashboard("foretell-vllm", "vLLM", _VLLM),
    Dashboard("foretell-placement", "Placement", _PLACEMENT),
    Dashboard("foretell-provisioning", "Provisioning", _PROVISIONING),
    Dashboard("foretell-offline", "Offline", _OFFLINE),
)
