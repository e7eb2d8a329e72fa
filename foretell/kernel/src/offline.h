// How far offline requests may delay online ones, for twins and for the planner of a real engine.

#pragma once

#include "base.h"

namespace foretell::offline {

// The slowdown that requests without targets may suffer, relative to steps without offline work.
// For requests with a TPOT target, steps aim below the target by this factor.
constexpr double STRETCH = 0.06;
// The share of a TTFT target that a step may take, as a new request may have to wait for it.
constexpr double ARRIVAL_SHARE = 0.25;
// If new requests have no target: the most time of a step, relative to the shortest step.
constexpr double ARRIVAL_STEPS = 1.5;
// If targets are too tight for more: the most time of a step, relative to the shortest step.
constexpr double LEAST_STEPS = 1.1;

// Seconds until the next token is due, `waited_s` after arrival with `tokens` sent.
//
// Echo's deadline of token i is TTFT + i * TPOT. After the first token, `ttft_s` is the actual
// TTFT, since TPOT is measured from there. So the delay by a prompt in between is made up for
// later; aiming below the target leaves slack for a prompt at the end. The result never exceeds
// that aim, however early the request is.
COMPILED double slack_s(double ttft_s, double tpot_s, double waited_s, Int tokens) {
    if (tokens == 0) return ttft_s - waited_s;
    const double aim_s = tpot_s / (1.0 + STRETCH);
    return min(ttft_s + double(tokens) * aim_s - waited_s, aim_s);
}

// The longest time of a step in which online requests alone would take `alone_s`.
//
// `slack_s` is the least slack of those with targets, negative if one is late. `as_alone`: some
// have no targets. `arrival_s` is how long an online request that arrives in the step may wait.
COMPILED double limit_s(double alone_s, double slack_s, bool as_alone, double arrival_s) {
    const double unnoticed_s = alone_s * (1.0 + STRETCH);
    // A request that is late in any case must not hold back offline work until it ends.
    double longest_s = slack_s >= alone_s ? slack_s : unnoticed_s;
    if (as_alone && alone_s > 0.0) longest_s = min(longest_s, unnoticed_s);
    return min(longest_s, max(arrival_s, unnoticed_s));
}

// The longest step that an arriving online request may have to wait for.
//
// `shortest_s`: a step of one decode; `ttft_s`: TTFT target of expected requests, 0 without.
COMPILED double arrival_s(double shortest_s, double ttft_s) {
    if (ttft_s == 0.0) return ARRIVAL_STEPS * shortest_s;
    return max(LEAST_STEPS * shortest_s, ttft_s * ARRIVAL_SHARE);
}

// Echo's benefit minus punishment of admitting a request, in tokens per second of the step.
//
// The step had `step_tokens`. `cached` tokens of the prompt are found, `computed` are added to the
// step, and `lost` cached tokens of others are evicted. With the request the step takes `step_s`.
COMPILED double worth(Int step_tokens, Int cached, Int computed, Int lost, double step_s) {
    return double(step_tokens + cached + computed - lost) / step_s;
}

}  // namespace foretell::offline
