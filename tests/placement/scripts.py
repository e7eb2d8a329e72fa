"""Reads the scripts in `scripts/`: events for the placement core, and the effects that they cause.

A script is a text file. `#` begins a comment. Its first line names the policy, optionally with
`late_binding`, and may change `PlacementConfig`. Each other line is an event with its time in
seconds; the lines below it that begin with `->` are all of its effects, in order. `-> ...` stands
for any effects.

    policy infaas retry_pause_s=0.2
    0.0 up engine-0                          # models=a,b  heard=0.0
    0.0 followed engine-0                    # there is a snapshot of it; or: left engine-0
    0.0 know engine-0:ttft=0.5,e2e=2         # or: engine-0:silent, engine-0:used=10,running=2
                                             # took= seconds that the next prediction takes
    0.0 arrive r1 prompt=100                 # priority= ttft= late=reject model= known=20
                                             # behind= among= recallable=no max= whole=yes
        -> ask r1 engine-0                   # predictions, reservations: before all effects
        -> reserve r1 engine-0
        -> dispatch r1 engine-0
    0.3 waits r1 9                           # for another 9 s; or: begun, or: unknown

`know` and `waits` are not events: they set the predictions that the next events will get. The other
events are `estimated KEY TOKENS`, `started`, `recalled`, `failed` and `gone KEY`,
`ended KEY [broken] [answered]`, `down`, `draining` and `removed INSTANCE`, and `passes KEY`: the
time of the request's last `wait` has come. KEY may be a range, `r1..r9`: there is one event for
each, and the effects of all are expected together.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Unpack

from foretell.model import LengthEstimate, Load, Prediction, RequestSpec, Slo
from foretell.placement import PlacementConfig, PlacementCore, effects, events
from foretell.placement.ports import Answer, Predicted, Wait, Wanted
from foretell.policy import Needs, make_policy

FOLDER = Path(__file__).parent / "scripts"
TOTAL_BLOCKS = 1056


@dataclass(slots=True)
class Line:
    """An event, and the effects that are expected."""

    number: int
    at_s: float
    words: list[str]
    expected: list[str] = field(default_factory=list)


class Known:
    """The predictions that a script states (implements `ports.Predict`)."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}
        self._waits: dict[str, Wait] = {}
        self._took_s = 0.0
        self._asked: list[str] = []

    def learn(self, words: list[str]) -> None:
        """Take in a line that begins with `know` or `waits`."""
        if words[0] == "waits":
            begun = words[2] == "begun"
            known = begun or words[2] == "unknown"
            self._waits[words[1]] = Wait(None if known else float(words[2]), begun)
            return
        for word in words[1:]:
            if word.startswith("took="):
                self._took_s = float(word.removeprefix("took="))
            elif word.endswith(":silent"):
                self._answers.pop(word.removesuffix(":silent"), None)
            else:
                answer = _answer(word)
                self._answers[answer.instance_id] = answer

    def take_asked(self) -> list[str]:
        """What was asked since the last call, in the notation of scripts."""
        asked, self._asked = self._asked, []
        return asked

    def predict(
        self,
        spec: RequestSpec,
        instance_ids: Sequence[str],
        now_s: float,
        **wanted: Unpack[Wanted],
    ) -> Predicted:
        less = " load" if wanted["needs"] is Needs.LOAD else " single" * wanted["single"]
        self._asked.append(f"ask {_key(spec)} {' '.join(instance_ids)}{less}")
        answers = [self._answers[name] for name in instance_ids if name in self._answers]
        took_s, self._took_s = self._took_s, 0.0
        return Predicted(answers, took_s)

    def reserve(self, spec: RequestSpec, instance_id: str, now_s: float) -> None:
        self._asked.append(f"reserve {spec.request_id} {instance_id}")

    def predict_one(self, spec: RequestSpec, instance_id: str, now_s: float) -> Prediction | None:
        return None

    def wait(self, spec: RequestSpec, instance_id: str, now_s: float) -> Wait:
        self._asked.append(f"look {_key(spec)} {instance_id}")
        return self._waits.get(_key(spec), Wait())


def _key(spec: RequestSpec) -> str:
    """The request's id without the number of the attempt."""
    return spec.request_id.split("-")[0]


@dataclass(slots=True)
class Script:
    """A parsed script and the core that gets its events."""

    core: PlacementCore
    lines: list[Line]
    known: "Known"
    tickets: dict[str, int] = field(default_factory=dict)

    def play(self) -> Iterator[tuple[Line, list[str]]]:
        """Each line with the effects that the core emits."""
        for line in self.lines:
            found: list[str] = []
            if line.words[0] in ("know", "waits"):
                self.known.learn(line.words)
                continue
            for event in self._events(line.words):
                effects_ = self.core.step(event, line.at_s)
                found += self.known.take_asked()
                found += map(self._told, effects_)
            yield line, found

    def _events(self, words: list[str]) -> Iterator[events.Event]:
        name, subject, *rest = words
        facts = dict(word.split("=", 1) for word in rest if "=" in word and ":" not in word)
        for key in _range(subject):
            yield self._event(name, key, rest, facts)

    def _event(  # noqa: PLR0911, PLR0912
        self, name: str, key: str, rest: list[str], facts: dict[str, str]
    ) -> events.Event:
        match name:
            case "up":
                models = frozenset(facts.get("models", "m").split(","))
                seen_s = (float(facts.get(name, "-inf")) for name in ("heard", "worked"))
                return events.InstanceUp(key, models, *seen_s)
            case "down":
                return events.InstanceDown(key)
            case "draining":
                return events.InstanceDraining(key)
            case "taken_back":
                return events.InstanceTakenBack(key)
            case "removed":
                return events.InstanceRemoved(key)
            case "followed" | "left":
                return events.InstanceFollowed(key, name == "followed")
            case "arrive":
                return _arrived(key, facts)
            case "estimated":
                return events.Estimated(key, LengthEstimate(float(rest[0])))
            case "started":
                return events.Started(key, "followed" in rest)
            case "recalled":
                return events.Recalled(key)
            case "passes":
                return events.TimePassed(key, self.tickets[key])
            case "failed":
                return events.Failed(key)
            case "ended":
                return events.Ended(key, "broken" in rest, "answered" in rest)
            case "gone":
                return events.Gone(key)
        raise ValueError(f"no event is called {name}")

    def _told(self, effect: effects.Effect) -> str:  # noqa: PLR0911
        """An effect in the notation of scripts."""
        match effect:
            case effects.Recall(key, instance_id):
                return f"recall {key} {instance_id}"
            case effects.Revise(_, spec, instance_id):
                tokens = spec.length.expected_tokens
                return f"revise {spec.request_id} {instance_id} {tokens:g}"
            case effects.GiveUp(key):
                return f"give up {key}"
            case effects.WaitUntil(key, at_s, ticket):
                self.tickets[key] = ticket
                return f"wait {key} {at_s:g}"
            case effects.Dispatch(key, spec, instance_id):
                priority = f" priority={spec.priority}" if spec.priority else ""
                return f"dispatch {spec.request_id} {instance_id}{priority}"
            case effects.Refuse(key, because):
                return f"refuse {key} {because}"
            case effects.Degraded(key, missing, count):
                return f"degraded {key} {missing}" + (f" {count}" if count > 1 else "")


def read(path: Path) -> Script:
    """Read the script in a file; ValueError names a line that cannot be read."""
    known, core, lines = Known(), None, list[Line]()
    for number, text in enumerate(path.read_text().splitlines(), 1):
        words = text.split("#")[0].split()
        try:
            if not words:
                continue
            if words[0] == "policy":
                core = _core(words[1], words[2:], known)
            elif words[0] == "->":
                lines[-1].expected.append(" ".join(words[1:]))
            else:
                lines.append(Line(number, float(words[0]), words[1:]))
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path.name}:{number}: {text.strip()!r}: {error}") from error
    assert core is not None, f"{path.name} names no policy"
    return Script(core, lines, known)


def _core(name: str, words: Sequence[str], known: "Known") -> PlacementCore:
    types = {f.name: f.type for f in fields(PlacementConfig)}
    late = {word: True for word in words if word == "late_binding"}
    pairs = [word.split("=") for word in words if word not in late]
    given = {n: int(v) if types[n] in (int, "int") else float(v) for n, v in pairs}
    policy = make_policy(name, **late)
    return PlacementCore(policy, PlacementConfig(**given), lambda: 0.5, known)


def _range(subject: str) -> Iterator[str]:
    found = re.fullmatch(r"([a-z-]+)(\d+)\.\.\1(\d+)", subject)
    if found is None:
        yield subject
    else:
        for number in range(int(found[2]), int(found[3]) + 1):
            yield f"{found[1]}{number}"


def _arrived(key: str, facts: dict[str, str]) -> events.Arrived:
    quartiles = map(float, facts["quartiles"].split("-")) if "quartiles" in facts else ()
    spec = RequestSpec(
        request_id=key,
        prompt_tokens=int(facts.get("prompt", 100)),
        max_tokens=int(facts.get("max", 0)),
        length=LengthEstimate(
            float(facts.get("known", 77)), tuple(zip((0.25, 0.75), quartiles, strict=False))
        ),
        priority=int(facts.get("priority", 0)),
        slo=Slo(float(facts.get("ttft", "inf"))),
    )
    late = "reject" if facts.get("late") == "reject" else "serve"
    return events.Arrived(
        spec,
        facts.get("model", "m"),
        late,
        among=frozenset(facts["among"].split(",")) if "among" in facts else None,
        late_s=float(facts.get("behind", 0)),
        recallable=facts.get("recallable") != "no",
        whole=facts.get("whole") == "yes",
        tenant=facts.get("tenant", ""),
    )


def _answer(word: str) -> Answer:
    """Parse `INSTANCE:` with facts of its load or its prediction."""
    instance_id, _, text = word.partition(":")
    facts = {name: float(value) for name, value in (part.split("=") for part in text.split(","))}
    load = Load(
        running=int(facts.get("running", 0)),
        waiting=int(facts.get("waiting", 0)),
        reserved=int(facts.get("reserved", 0)),
        used_blocks=int(facts.get("used", 0)),
        total_blocks=TOTAL_BLOCKS,
        waiting_prefill_blocks=0,
        max_num_seqs=int(facts.get("seats", 48)),
        by_priority=bool(facts.get("by_priority", 0)),
    )
    if "ttft" not in facts:
        return Answer(instance_id, load)
    ttft_s, e2e_s = facts["ttft"], facts.get("e2e", facts["ttft"] + 1.0)
    added = facts.get("added", 0.0)
    prediction = Prediction(
        instance_id, ttft_s, e2e_s, 0.01, 0.0, 0.0, load, added_ttft_s=added, added_e2e_s=added
    )
    return Answer(instance_id, load, prediction)
