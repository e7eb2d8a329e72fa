// What offline requests leave to online ones; also for who plans steps of a real engine.

#pragma once

#include "base.h"

namespace foretell::offline {

// What a request without targets may lose, as a share of what it would need alone; and by how much
// less than its TPOT target is aimed at for one that has it.
constexpr double STRETCH = 0.06;
// The share of a TTFT target that the step which a new request finds running may take.
constexpr double ARRIVAL_SHARE = 0.25;
// A request without target may find a step that takes so many times as long as the shortest.
constexpr double ARRIVAL_STEPS = 1.5;
// Where targets are too close to leave more, the step may take so many times as long.
constexpr double LEAST_STEPS = 1.1;

// Seconds until the next token is due, `waited_s` after arrival with `tokens` sent.
//
// Echo's deadline of token i, TTFT + i * TPOT; but once the first token is out, `ttft_s` is when it
// came, as who measures TPOT begins there. So what a prompt in between takes is made up for; aiming
// at less than the target leaves something for one that comes last. No token takes longer than
// that, however much is in hand.
COMPILED double slack_s(double ttft_s, double tpot_s, double waited_s, Int tokens) {
    if (tokens == 0) return ttft_s - waited_s;
    const double aim_s = tpot_s / (1.0 + STRETCH);
    return min(ttft_s + double(tokens) * aim_s - waited_s, aim_s);
}

// The longest step, where online requests alone would take `alone_s`.
//
// `slack_s` is the least of those with targets, negative where one is late; `as_alone`: there are
// others; `arrival_s` is what an online request that comes during the step may lose.
COMPILED double limit_s(double alone_s, double slack_s, bool as_alone, double arrival_s) {
    const double unnoticed_s = alone_s * (1.0 + STRETCH);
    // One that is late in any case must not hold offline work back until its end.
    double longest_s = slack_s >= alone_s ? slack_s : unnoticed_s;
    if (as_alone && alone_s > 0.0) longest_s = min(longest_s, unnoticed_s);
    return min(longest_s, max(arrival_s, unnoticed_s));
}

// What an online request that comes during a step may lose.
//
// `shortest_s`: a step of one decode; `ttft_s`: the target of requests that are expected, 0: none.
COMPILED double arrival_s(double shortest_s, double ttft_s) {
    if (ttft_s == 0.0) return ARRIVAL_STEPS * shortest_s;
    return max(LEAST_STEPS * shortest_s, ttft_s * ARRIVAL_SHARE);
}

// Echo's benefit less punishment of admitting a request, in tokens per second of the step.
//
// The step had `step_tokens`; of the prompt `cached` tokens are there and `computed` are added, and
// `lost` that others would have found are evicted; with it the step takes `step_s`.
COMPILED double worth(Int step_tokens, Int cached, Int computed, Int lost, double step_s) {
    return double(step_tokens + cached + computed - lost) / step_s;
}

}  // namespace foretell::offline
