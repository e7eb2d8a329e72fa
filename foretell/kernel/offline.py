"""What offline requests leave to online ones. Plain functions, which `kernel.cosched` compiles.

Apart, and without Numba, for who plans steps of a real engine (`foretell.cosched`) decides alike.
"""

OFFLINE_PRIORITY = 2**31 - 1
"""The last priority: that of offline requests, and where engines co-schedule of nobody else."""
STRETCH = 0.06
"""What a request without targets may lose, as a share of what it would need alone; and by how much
less than its TPOT target is aimed at for one that has it."""
_ARRIVAL_SHARE = 0.25
"""The share of a TTFT target that the step which a new request finds running may take."""
_ARRIVAL_STEPS = 1.5
"""A request without target may find a step that takes so many times as long as the shortest."""
_LEAST_STEPS = 1.1
"""Where targets are too close to leave more, the step may take so many times as long."""


def slack_s(ttft_s: float, tpot_s: float, waited_s: float, tokens: int) -> float:
    """Seconds until the next token is due, `waited_s` after arrival with `tokens` sent.

    Echo's deadline of token i, TTFT + i * TPOT; but once the first token is out, `ttft_s` is when
    it came, as who measures TPOT begins there. So what a prompt in between takes is made up for;
    aiming at less than the target leaves something for one that comes last. No token takes longer
    than that, however much is in hand.
    """
    if tokens == 0:
        return ttft_s - waited_s
    aim_s = tpot_s / (1.0 + STRETCH)
    return min(ttft_s + tokens * aim_s - waited_s, aim_s)


def limit_s(alone_s: float, slack_s: float, as_alone: bool, arrival_s: float) -> float:
    """The longest step, where online requests alone would take `alone_s`.

    `slack_s` is the least of those with targets, negative where one is late; `as_alone`: there are
    others; `arrival_s` is what an online request that comes during the step may lose.
    """
    unnoticed_s = alone_s * (1.0 + STRETCH)
    # One that is late in any case must not hold offline work back until its end.
    longest_s = slack_s if slack_s >= alone_s else unnoticed_s
    if as_alone and alone_s > 0.0:
        longest_s = min(longest_s, unnoticed_s)
    return min(longest_s, max(arrival_s, unnoticed_s))


def arrival_s(shortest_s: float, ttft_s: float) -> float:
    """What an online request that comes during a step may lose.

    `shortest_s`: a step of one decode; `ttft_s`: the target of requests that are expected, 0: none.
    """
    if ttft_s == 0.0:
        return _ARRIVAL_STEPS * shortest_s
    return max(_LEAST_STEPS * shortest_s, ttft_s * _ARRIVAL_SHARE)


def worth(step_tokens: int, cached: int, computed: int, lost: int, step_s: float) -> float:
    """Echo's benefit less punishment of admitting a request, in tokens per second of the step.

    The step had `step_tokens`; of the prompt `cached` tokens are there and `computed` are added,
    and `lost` that others would have found are evicted; with it the step takes `step_s`.
    """
    return (step_tokens + cached + computed - lost) / step_s
