"""The states of a client's connection, and what leads from one to another.

As in h11, but for both sides in one: what each side may do next follows from the state.
"""

from enum import Enum, auto


class LocalProtocolError(Exception):
    """We did what is not due in this state: a defect of ours."""


class State(Enum):
    """Where a connection stands in the cycle of a request and its answer."""

    IDLE = auto()
    """No request is in progress; a part of a head may have come."""
    RECEIVING = auto()
    """A head has come. Its body is on its way, and it may be answered before that has ended."""
    ANSWERING = auto()
    """The request is whole. What follows it waits, unread, until it has been answered."""
    DRAINING = auto()
    """The request has been answered, and the rest of its body comes for nothing."""
    FAILED = auto()
    """The body turned out to be none. The request is still to be answered; nothing more is read."""
    DONE = auto()
    """Request and answer are whole."""
    CLOSING = auto()
    """Nothing more is said or heard."""

    __hash__ = object.__hash__  # that of Enum takes longer than all the rest of a transition


class Step(Enum):
    """What happens to a connection."""

    HEAD = auto()
    BODY_END = auto()
    ANSWER_END = auto()
    MALFORMED = auto()
    """What came is no HTTP."""
    NEXT = auto()
    """The connection is kept."""
    CLOSE = auto()
    """The connection is not kept."""

    __hash__ = object.__hash__


TRANSITIONS: dict[State, dict[Step, State]] = {
    State.IDLE: {
        Step.HEAD: State.RECEIVING,
        Step.MALFORMED: State.CLOSING,
        Step.CLOSE: State.CLOSING,
    },
    State.RECEIVING: {
        Step.BODY_END: State.ANSWERING,
        Step.ANSWER_END: State.DRAINING,
        Step.MALFORMED: State.FAILED,
    },
    State.ANSWERING: {Step.ANSWER_END: State.DONE},
    State.DRAINING: {Step.BODY_END: State.DONE, Step.MALFORMED: State.CLOSING},
    State.FAILED: {Step.ANSWER_END: State.CLOSING},
    State.DONE: {Step.NEXT: State.IDLE, Step.CLOSE: State.CLOSING},
    State.CLOSING: {},
}


def after(state: State, step: Step) -> State:
    """The state that follows; raises `LocalProtocolError` where the step is not due."""
    try:
        return TRANSITIONS[state][step]
    except KeyError:
        raise LocalProtocolError(f"{step.name} is not due in the state {state.name}") from None
