// Output lengths as distributions, given the tokens generated so far: `foretell.kernel.lengths`.

#pragma once

#include "base.h"

namespace foretell::lengths {

constexpr Int KNOTS = 8, WIDTH = KNOTS + 1, LAST = KNOTS - 1;
constexpr Int STRATA = 1024, STRATA_BITS = 10;
constexpr Int OVERRUN_TOKENS = 10;

// `foretell.kernel.lengths` sets these when it is imported.
static double HAZARD[KNOTS];  // of each knot's level
static double PER_HAZARD[KNOTS - 1];
static double STRATUM_HAZARD[STRATA];
static Int SHIFT[STRATA];  // sample s has its stratum XOR entry s

// H(g) = -log P(L > g); infinite if `row` ends at `g` tokens or before.
COMPILED double hazard(const double* row, double g) {
    if (g < row[0]) return 0.0;
    if (g >= row[LAST]) {
        const double tail = row[LAST + 1];
        return tail > 0.0 ? HAZARD[LAST] + (g - row[LAST]) / tail : INFINITY;
    }
    Int i = 0;
    while (g >= row[i + 1]) i += 1;  // of equal knots the last: P(L > g) excludes ends at them
    const double share = (g - row[i]) / (row[i + 1] - row[i]);
    return HAZARD[i] + share * (HAZARD[i + 1] - HAZARD[i]);
}

// The number of tokens at the finite cumulative hazard `h`.
COMPILED double tokens_at(const double* row, double h) {
    Int i = 0;
    // Counting needs no branch that could be mispredicted.
    for (Int knot = 1; knot <= LAST; knot++) i += h >= HAZARD[knot];
    if (i == LAST) return row[LAST] + (h - HAZARD[LAST]) * row[LAST + 1];
    return row[i] + (h - HAZARD[i]) * PER_HAZARD[i] * (row[i + 1] - row[i]);
}

// The quantile of L, given L > g, at level `u` in (0, 1): a number of tokens above `g`.
COMPILED double conditional_quantile(const double* row, double g, double u) {
    const double h = hazard(row, g);
    if (h == INFINITY) return g + double(OVERRUN_TOKENS);
    return tokens_at(row, h - log1p(-u));
}

// The stratum of a request: uniform over keys and seeds (the finalizer of splitmix64).
COMPILED Int stratum_of(Int key, Int seed) {
    uint64_t z = uint64_t(key) * 0x9E3779B97F4A7C15u + uint64_t(seed);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return Int(z >> (64 - STRATA_BITS));
}

// Draw samples of the final output length of a request that has generated `g` tokens.
//
// Column `i` of `totals`, (samples, n), is overwritten with integers above `g`. The caller must
// apply `max_tokens`.
//
// Within a sample requests are independent, as they are in the engine. Across samples each request
// has levels in equal parts of (0, 1), as in Latin hypercube sampling (McKay, Beckman and Conover,
// 1979), beginning at a stratum that depends on its key and the seed, so 2, 4, 8, ... samples
// already have good means. A request with the same key has the same levels. A single sample is not
// drawn: it is the median.
COMPILED void draw_levels(const double* row, Int g, Int key, Int seed, const Table<Int>& totals,
                          Int i) {
    const double h = hazard(row, double(g));
    if (h == INFINITY) {
        for (Int s = 0; s < totals.rows; s++) totals.at(s, i) = g + OVERRUN_TOKENS;
        return;
    }
    if (totals.rows == 1) {
        const double tokens = tokens_at(row, h + STRATUM_HAZARD[STRATA / 2]);
        totals.at(0, i) = max(g + 1, round_even(tokens));
        return;
    }
    const Int stratum = stratum_of(key, seed);
    for (Int s = 0; s < totals.rows; s++) {
        const double tokens = tokens_at(row, h + STRATUM_HAZARD[stratum ^ SHIFT[s]]);
        totals.at(s, i) = max(g + 1, round_even(tokens));
    }
}

}  // namespace foretell::lengths
