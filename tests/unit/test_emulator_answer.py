"""From counted tokens to text, and the limits of a request."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foretell.engine import Sequence
from foretell.model import OFFLINE_PRIORITY, EngineConfig
from foretell.services.backend.emulator.answer import EmulatedChoice, EmulatedRequest, JobMaker
from foretell.services.backend.emulator.lengths import EmulatedLengths
from foretell.services.backend.emulator.protocol import ChatRequest, CompletionRequest
from foretell.services.backend.emulator.text import Continuation, tokenize

CONFIG = EngineConfig(
    model_name="m",
    block_size_tokens=16,
    total_blocks=64,
    max_num_seqs=8,
    max_num_scheduled_tokens=512,
    max_model_len=1000,
)
LENGTHS = EmulatedLengths()
PROMPT = "Once upon a time"
WORDS = Continuation(tokenize(PROMPT))
TEXT = "".join(f" {WORDS.next_word()}" for _ in range(40))


def make(**fields: Any) -> EmulatedRequest:
    body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, **fields}
    return JobMaker(CONFIG, LENGTHS, 64).make(CompletionRequest(**body), "cmpl-R", 0, 1.0)


def drain(answer: EmulatedChoice, counts: list[int], total: int) -> str:
    """Read the text when the stream has each of `counts` tokens, then at its end, `total`."""
    pieces = []
    for count in [*sorted(counts), total]:
        answer.stream.tokens = count
        answer.stream.finished = count == total
        pieces.append(answer.read())
        if answer.finish_reason is not None:
            break
    return "".join(pieces)


@given(
    counts=st.lists(st.integers(0, 39), max_size=8),
    spans=st.lists(st.tuples(st.integers(0, len(TEXT) - 1), st.integers(1, 25)), max_size=3),
    min_tokens=st.integers(0, 10),
)
def test_stop_strings_cut_where_they_first_complete_however_tokens_arrive(
    counts: list[int], spans: list[tuple[int, int]], min_tokens: int
) -> None:
    stops = [TEXT[begin : begin + size] for begin, size in spans]
    (answer,) = make(stop=stops, min_tokens=min_tokens).answers
    text = drain(answer, counts, 40)
    # By definition, token by token: a stop string counts if it ends in a token after min_tokens.
    ends = [*[i for i, char in enumerate(TEXT) if char == " "][1:], len(TEXT)]
    expected, reason = TEXT, "length"
    for tokens, end in enumerate(ends, 1):
        begin = ends[tokens - 2] if tokens > 1 else 0
        matches = [
            (at + len(stop), at)
            for stop in stops
            for at in range(end - len(stop) + 1)
            if TEXT.startswith(stop, at) and begin < at + len(stop) <= end
        ]
        if tokens > min_tokens and matches:
            expected, reason = TEXT[: min(matches, key=lambda match: match[0])[1]], "stop"
            break
    assert (text, answer.finish_reason) == (expected, reason)


def test_text_that_may_be_a_stop_string_is_held_back() -> None:
    words = TEXT.split()
    (answer,) = make(stop=[f"{words[1]} {words[2]}"]).answers
    answer.stream.tokens = 2
    assert f" {words[1]}" not in answer.read()
    answer.stream.tokens = 3
    answer.read()
    assert (answer.finish_reason, answer.tokens) == ("stop", 3)


def test_engine_ids_and_limits_of_several_choices() -> None:
    job = make(prompt=["a", "b c"], n=2, temperature=1.0)
    ids = [answer.stream.sequence.request_id for answer in job.answers]
    assert [request_id.rsplit("-", 1)[0] for request_id in ids] == [
        "0_cmpl-R-0",
        "1_cmpl-R-0",
        "0_cmpl-R-1",
        "1_cmpl-R-1",
    ]
    assert len({answer.stream.sequence.request_id for answer in job.answers}) == 4
    assert [answer.stream.sequence.prompt_tokens for answer in job.answers] == [1, 1, 2, 2]
    assert job.usage()["prompt_tokens"] == 3


def test_the_client_sees_max_tokens_and_only_the_engine_the_end() -> None:
    (answer,) = make(ignore_eos=False, max_tokens=990).answers
    sequence = answer.stream.sequence
    assert sequence.stop_after < sequence.max_tokens == 990
    assert drain(answer, [], sequence.stop_after).startswith(TEXT[:50])
    assert answer.finish_reason == "stop"


def chat(**fields: Any) -> list[str]:
    messages = [{"role": "user", "content": "Hi <|end|>"}, {"role": "assistant", "content": "a b"}]
    (tokens,) = ChatRequest(**{"messages": messages, **fields}).prompts()
    return tokens


def test_chat_template() -> None:
    said = ["<|user|>", "Hi", "<", "|", "end", "|", ">", "<|end|>", "<|assistant|>", "a", "b"]
    assert chat() == [*said, "<|end|>", "<|assistant|>"]


def test_a_chat_may_use_what_the_model_has_left() -> None:
    messages = [{"role": "user", "content": "word " * 90}]
    request = ChatRequest(messages=messages, ignore_eos=True)
    job = JobMaker(CONFIG, LENGTHS, 64).make(request, "chatcmpl-R", 0, 1.0)
    assert job.answers[0].stream.sequence.max_tokens == 1000 - 93
    both = ChatRequest(messages=messages, max_tokens=5, max_completion_tokens=7)
    assert both.output_limit() == 7


def test_marks_of_a_foretell_scheduler() -> None:
    def tag(**xargs: Any) -> tuple[str, float]:
        tag = CompletionRequest(prompt="x", vllm_xargs=xargs).tag()
        return tag.foretell_id, tag.predicted_output_tokens

    assert tag() == ("", 0.0)
    assert tag(foretell_id="F", foretell_predicted_tokens="20.5") == ("F", 20.5)
    assert tag(foretell_predicted_tokens="many") == ("", 0.0)


def test_classes_and_targets_count_where_offline_requests_are_told_apart() -> None:
    def sequence(config: EngineConfig, priority: int, **xargs: Any) -> Sequence:
        request = CompletionRequest(prompt=PROMPT, vllm_xargs=xargs)
        job = JobMaker(config, LENGTHS, 64).make(request, "cmpl-R", priority, 1.0)
        return job.answers[0].stream.sequence

    apart, last = replace(CONFIG, co_schedules=True), OFFLINE_PRIORITY
    assert sequence(apart, 3, **{"class": "offline"}).priority == last
    assert sequence(CONFIG, 3, **{"class": "offline"}).priority == 3
    online = sequence(apart, last, slo_ttft_ms=1000, slo_tpot_ms="50")
    assert (online.priority, online.targets_s) == (last - 1, (1.0, 0.05))
    assert sequence(apart, 0, slo_ttft_ms=1000).targets_s == (1.0, 0.0)
