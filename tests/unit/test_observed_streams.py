"""What is learnt about an engine whose streams have several tokens in an event."""

from collections.abc import Callable
from random import Random

import pytest
from stepped_engine import NOW, STEP_TIME

from foretell.engine import Sequence, Twin
from foretell.engine.observed import ObservedEngine
from foretell.engine.observed_rows import unheard
from foretell.engine.progress import ObservedStream, StreamProgress
from foretell.engine.seen_limits import TELL_EVERY_S
from foretell.engine.stream_text import StreamPart, part_of
from foretell.latency.calibration import OnlineStepTime
from foretell.model import BatchShape, EngineConfig, LengthEstimate, RequestSpec
from foretell.model.limits import EngineLimits

SEATS = 8
LIMITS = EngineLimits(SEATS, 256, 2048, 16, 4000)
WORDS = ("a", " the", " engine", " of", " tokens", " predicted", " in", " is", "ly", " step")
Together = Callable[["Server", Sequence], int]
"""Returns how many tokens of a sequence are sent together."""


class Server:
    """An engine that sends tokens once there are as many as `together` says, and its observer."""

    def __init__(
        self,
        seed: int,
        together: Together,
        *,
        stated: bool,
        usage: bool = True,
        split: bool = False,
    ) -> None:
        """`stated`: events state the number of tokens so far; `usage`: the last event does;
        `split`: events have one token each, but arrive together."""
        self.rng = Random(seed)
        self.together = together
        self.stated, self.usage, self.split = stated, usage, split
        self.step_time = OnlineStepTime()
        self.observed = ObservedEngine("e", LIMITS, self.step_time.step_s)
        self.progress = StreamProgress()
        self.twin = Twin(EngineConfig("m", 16, 4000, SEATS, 256, 2048))
        self.now, self.told_s, self.steps = NOW, NOW, 0
        self.streams: dict[str, ObservedStream] = {}
        self.sent: dict[str, int] = {}
        self.open: dict[str, Sequence] = {}

    def arrive(self, name: str) -> None:
        spec = RequestSpec(name, self.rng.randint(10, 200), 400, LengthEstimate(100.0))
        seq = Sequence(name, spec.prompt_tokens, self.rng.randint(40, 200), 400, arrival_s=self.now)
        self.observed.sent(spec, self.now - 0.002)
        self.streams[name] = self.progress.open(name)
        self.sent[name], self.open[name] = 0, seq
        self.twin.add(seq)

    def step(self) -> None:
        batch = self.twin.schedule()
        if batch is None or not batch.scheduled:
            self.now += 0.05
            return
        self.now += STEP_TIME.step_s(batch.shape)
        self.steps += 1
        outcome = self.twin.complete(batch)
        done = {seq.request_id for seq in outcome.finished}
        for seq in outcome.sampled:
            self.send(seq, last=seq.request_id in done)
        for name in done:
            tokens = self.sent[name] if self.usage else 0
            ago_s = self.progress.close(name, tokens, self.now)
            self.observed.ended(name, self.now - ago_s, tokens)
            del self.open[name], self.streams[name]

    def send(self, seq: Sequence, *, last: bool) -> None:
        name = seq.request_id
        new = seq.output_tokens - self.sent[name]
        if not (last or not self.sent[name] or new >= self.together(self, seq)):
            return
        words = [self.rng.choice(WORDS) for _ in range(new)]
        self.sent[name] = seq.output_tokens
        texts = words if self.split else ["".join(words)]
        data = "".join(f'data: {{"choices":[{{"delta":{{"content":"{t}"}}}}]}}\n\n' for t in texts)
        data += "data: [DONE]\n\n" if last else ""
        stated = seq.output_tokens if self.stated else 0
        self.progress.came(self.streams[name], part_of(data.encode(), stated), self.now)

    def tell(self) -> None:
        first = dict(zip(self.progress.streams, self.progress.first_ends(), strict=True))
        tokens = dict(zip(self.progress.streams, self.progress.tokens(), strict=True))
        found = self.progress.take(self.now)
        ends = [(self.now - ago_s, n) for ago_s, n in zip(found.ago_s, found.steps, strict=True)]
        since_s = self.now - found.since_ago_s
        self.observed.progressed(ends, tokens, first, since_s)
        for step in self.observed.snapshot(self.now).completed_steps:
            self.step_time.observe(step.shape, step.duration_s)
        self.told_s = self.now

    def serve(self, requests: int, name: str = "") -> None:
        for number in range(requests):
            self.arrive(f"{name}{number}")
            for _ in range(self.rng.randint(5, 35)):
                self.step()
                if self.now - self.told_s >= TELL_EVERY_S:
                    self.tell()


def every(tokens: int) -> Together:
    return lambda server, seq: tokens


def changing(server: Server, seq: Sequence) -> int:
    return 1 if server.steps < 800 else 16


def at_random(server: Server, seq: Sequence) -> int:
    return server.rng.choice((1, 2, 3, 5))


DECODES = BatchShape(decode_seqs=6, decode_pairs=6 * 150)


def off(server: Server) -> float:
    """The estimated time of a step divided by the true time."""
    return server.step_time.step_s(DECODES) / STEP_TIME.step_s(DECODES)


@pytest.mark.parametrize("together", [every(1), every(4), every(16), changing, at_random])
def test_step_times_come_from_tokens_over_time(together: Together) -> None:
    server = Server(3, together, stated=True)
    server.serve(90)
    assert 0.9 < off(server) < 1.1


@pytest.mark.parametrize("together", [every(1), every(4), every(16), changing, at_random])
def test_where_nobody_states_tokens_texts_tell_how_many_there_are(together: Together) -> None:
    server = Server(3, together, stated=False)
    server.serve(120)
    assert 0.75 < off(server) < 1.25


def test_a_proxy_that_gathers_events_changes_nothing() -> None:
    server = Server(3, every(10), stated=False, split=True)
    server.serve(80)
    assert 0.9 < off(server) < 1.1


def test_texts_tell_even_where_no_answer_ends_with_a_count() -> None:
    server = Server(3, every(16), stated=False, usage=False)
    server.serve(120)
    assert 0.6 < off(server) < 1.4


def test_requests_of_which_tokens_come_late_are_where_they_are() -> None:
    server = Server(5, every(16), stated=True)
    server.serve(60)
    server.tell()
    rows = {row.request_id: row for row in server.observed.snapshot(server.now).running}
    running = {seq.request_id: seq for seq in server.twin.running}
    assert rows.keys() == running.keys()
    for name, seq in running.items():
        assert abs(rows[name].output_tokens - seq.output_tokens) <= 16


@pytest.mark.parametrize("seed", range(3))
def test_with_drafts_a_step_is_a_token_of_the_mean_stream(seed: int) -> None:
    rng, progress = Random(seed), StreamProgress()
    tokens = dict.fromkeys((progress.open(f"r{i}") for i in range(8)), 0)
    told = 0
    for step in range(1, 401):
        for number, stream in enumerate(tokens):
            tokens[stream] += 1 + sum(rng.random() < 0.2 + 0.1 * number for _ in range(3))
            progress.came(stream, StreamPart(stated=tokens[stream]), step * 0.03)
        told += sum(progress.take(step * 0.03).steps)
    mean = sum(tokens.values()) / len(tokens)
    assert told == pytest.approx(mean, rel=0.1)


def test_streams_without_text_and_counts_have_a_token_for_each_event() -> None:
    progress = StreamProgress()
    stream = progress.open("one")
    for number in range(5):
        progress.came(stream, part_of(b"data: x\n\n", 0), 1.0 + 0.02 * number)
    assert progress.tokens() == [5]


def test_the_last_events_of_the_responses_api_repeat_the_text_and_do_not_count() -> None:
    delta = b'data: {"type":"response.output_text.delta","delta":" word"}\n\n'
    done = b'data: {"type":"response.output_text.done","text":" word word"}\n\n'
    assert part_of(delta + done, 0)[1:3] == (1, 5)


def test_the_event_that_names_the_speaker_comes_with_the_first_token() -> None:
    progress = StreamProgress()
    stream = progress.open("one")
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    text = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
    for data, at_s in ((role, 1.0), (text, 1.003), (text, 1.02)):
        progress.came(stream, part_of(data, 0), at_s)
    assert progress.tokens() == [2]
    assert len(progress.take(1.1).ago_s) == 2


def test_two_observers_of_one_engine_do_not_count_its_steps_twice() -> None:
    ends = [(NOW + 0.16, 8), (NOW + 0.32, 8)]
    assert unheard(ends, NOW, NOW, 0.02) == ends
    assert unheard(ends, NOW, NOW + 0.08, 0.02) == [(NOW + 0.16, 4), (NOW + 0.32, 8)]
    assert unheard(ends, NOW, NOW + 0.32, 0.02) == [(NOW + 0.16, 0), (NOW + 0.32, 0)]
