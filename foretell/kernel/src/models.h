// The inner loops of length models: for a few rows numpy's calls would cost more. Their purpose is
// described in `foretell.length`. All tables have one row per request.

#pragma once

#include "base.h"

// gcc vectorises these loops from this level on, clang at any level.
#ifndef __clang__
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif

namespace foretell::models {

using Numbers = Array<double>;
using Rows = Table<double>;

// --- The layers of a small network. --------------------------------------------------------------

// Standardise features in place, and clip them to [-`most`, `most`].
COMPILED void standardise(const Table<float>& rows, const Array<float>& mean,
                          const Array<float>& scale, double most) {
    for (Int row = 0; row < rows.rows; row++) {
        for (Int i = 0; i < mean.size; i++) {
            const float value = (rows.at(row, i) - mean[i]) * scale[i];
            rows.at(row, i) = float(min(max(double(value), -most), most));
        }
    }
}

// Add to each row of `means` its rows of `words`, then divide by the square root of their number.
// The first `counts[0]` of `numbers` are the words of the first row, and so on.
COMPILED void sum_words(const Table<float>& words, const Array<Int>& numbers,
                        const Array<Int>& counts, const Table<float>& means) {
    Int at = 0;
    for (Int row = 0; row < means.rows; row++) {
        const Array<float> own = means[row];
        for (Int i = at; i < at + counts[row]; i++) {
            const Array<float> word = words[numbers[i]];
            for (Int j = 0; j < own.size; j++) own[j] += word[j];
        }
        at += counts[row];
        for (float& mean : own) mean = float(double(mean) / sqrt(double(counts[row])));
    }
}

// Set `sums` to the layer's bias, the last row of its weights.
INLINED void add_bias(const Table<float>& weights, const Numbers& sums) {
    const Array<float> bias = weights[weights.rows - 1];
    for (Int j = 0; j < sums.size; j++) sums[j] = bias[j];
}

// Add the products of `inputs` and weights to `sums`; many inputs are 0.
template <class T>
INLINED void add_inputs(const Array<T>& inputs, const Table<float>& weights, const Numbers& sums) {
    double* __restrict into = sums.data;
    for (Int i = 0; i < inputs.size; i++) {
        const T input = inputs[i];
        if (input == 0) continue;
        const float* __restrict row = weights[i].data;
        for (Int j = 0; j < sums.size; j++) into[j] += input * row[j];
    }
}

INLINED void rectify(const Numbers& values) {
    for (double& value : values) value = max(value, 0.0);
}

// The network of features and words; the softmax of its last layer is written to `shares`. The last
// row of each layer's weights is its bias. `hidden`, two rows, is overwritten.
COMPILED void forward(const Table<float>& rows, const Table<float>& words,
                      const Table<float>& first, const Table<float>& second,
                      const Table<float>& last, const Rows& hidden, const Rows& shares) {
    const Numbers one = hidden[0], other = hidden[1];
    for (Int row = 0; row < rows.rows; row++) {
        add_bias(first, one);
        add_inputs(rows[row], first, one);
        add_inputs(words[row], first.from(rows.columns), one);
        rectify(one);
        add_bias(second, other);
        add_inputs(one, second, other);
        rectify(other);
        const Numbers own = shares[row];
        add_bias(last, own);
        add_inputs(other, last, own);
        double most = -INFINITY, whole = 0.0;
        for (const double value : own) most = max(most, value);
        for (double& value : own) {
            value = exp(value - most);
            whole += value;
        }
        for (double& value : own) value /= whole;
    }
}

// --- Distributions over bins of length. ----------------------------------------------------------

// Tokens at each of `levels`; the last bin is an exponential with mean `tail_mean`.
COMPILED void quantiles(const Rows& probabilities, const Numbers& levels, const Numbers& edges,
                        double tail_mean, const Rows& found) {
    const Int last = edges.size - 1;
    for (Int row = 0; row < found.rows; row++) {
        const Numbers mine = probabilities[row];
        for (Int column = 0; column < levels.size; column++) {
            const double wanted = levels[column];
            Int at = 0;
            double below = mine[0], own = mine[0];
            while (below < wanted && at < last) {
                at += 1;
                own = mine[at];
                below += own;
            }
            double share = max((wanted - below + own) / max(own, 1e-12), 0.0);
            share = min(share, 1.0 - 1e-9);
            const double inside =
                at < last ? share * (edges[at + 1] - edges[at]) : -log1p(-share) * tail_mean;
            found.at(row, column) = edges[at] + inside;
        }
    }
}

// E[min(length, limit)] of each row.
COMPILED void means(const Rows& probabilities, const Numbers& limits, const Numbers& edges,
                    double tail_mean, const Numbers& found) {
    const Int last = edges.size - 1;
    for (Int row = 0; row < found.size; row++) {
        const double limit = limits[row];
        double mean = 0.0;
        for (Int at = 0; at < last; at++) {
            const double low = min(edges[at], limit), high = min(edges[at + 1], limit);
            // Of a bin that contains the limit, a share is below it and the rest is clipped to it.
            double reached = (limit - edges[at]) / (edges[at + 1] - edges[at]);
            reached = min(max(reached, 0.0), 1.0);
            const double inside = reached * (low + high) / 2.0 + (1.0 - reached) * high;
            mean += probabilities.at(row, at) * inside;
        }
        const double beyond = max(0.0, limit - edges[last]);
        const double longest = min(edges[last], limit) - tail_mean * expm1(-beyond / tail_mean);
        found[row] = mean + probabilities.at(row, last) * longest;
    }
}

// Convert P(length <= upper edge) of each bin to the bin's probability.
COMPILED void differences(const Rows& below) {
    for (Int row = 0; row < below.rows; row++) {
        for (Int at = below.columns - 1; at > 0; at--) {
            below.at(row, at) = max(0.0, below.at(row, at) - below.at(row, at - 1));
        }
    }
}

// The product-limit estimator of `Experience`; the prior counts as `worth` answers.
COMPILED void experience(const Rows& prior, const Numbers& reached, const Numbers& passed,
                         double worth, const Rows& below) {
    const double least = 1e-300;
    const Int last = prior.columns - 1;
    for (Int row = 0; row < prior.rows; row++) {
        double going_on = 1.0, came = worth;
        for (Int cell = 0; cell < last; cell++) {
            const double beyond = worth * (1.0 - prior.at(row, cell));
            going_on *= (passed[cell] + beyond) / max(came + reached[cell], least);
            below.at(row, cell) = 1.0 - going_on;
            came = beyond;
        }
        below.at(row, last) = 1.0;
    }
}

// Apply to `below` the distribution function whose values at equal distances are `levels`.
COMPILED void recalibrate(const Numbers& below, const Numbers& levels, const Numbers& corrected) {
    const Int cells = levels.size - 1;
    for (Int i = 0; i < below.size; i++) {
        const double position = min(max(below[i], 0.0), 1.0) * double(cells);
        const Int cell = min(Int(position), cells - 1);
        const double inside = position - double(cell);
        corrected[i] = levels[cell] + inside * (levels[cell + 1] - levels[cell]);
    }
}

// P(length <= upper edge) of each bin by a regression on the features `inputs`.
//
// `scale` converts a standard deviation to the scale of the logistic distribution.
COMPILED void regress(const Rows& probabilities, const Rows& inputs, const Numbers& weights,
                      const Rows& covariance, double square, const Numbers& centre_logs,
                      const Numbers& upper_logs, double scale, const Rows& found) {
    for (Int row = 0; row < found.rows; row++) {
        const Numbers x = inputs[row];
        double centre = 0.0, variance = square;
        for (Int at = 0; at < centre_logs.size; at++) {
            centre += probabilities.at(row, at) * centre_logs[at];
        }
        for (Int i = 0; i < x.size; i++) {
            centre += x[i] * weights[i];
            double along = 0.0;
            for (Int j = 0; j < x.size; j++) along += covariance.at(i, j) * x[j];
            variance += along * x[i];
        }
        const double deviation = sqrt(variance) * scale;
        for (Int at = 0; at < upper_logs.size; at++) {
            const double z = min(max((upper_logs[at] - centre) / deviation, -50.0), 50.0);
            found.at(row, at) = 1.0 / (1.0 + exp(-z));
        }
        found.at(row, upper_logs.size) = 1.0;
    }
}

// P(length <= a knot). `below` is the same at upper edges; `tail` is the cumulative hazard at knots
// within the last bin, counted from its beginning.
INLINED double level_of_knot(const Numbers& below, const Numbers& tail, Int knot) {
    if (knot == 0) return 0.0;
    if (knot < below.size) return below[knot - 1];
    const double before = below[below.size - 2];
    return before + (1.0 - before) * -expm1(-tail[knot - below.size]);
}

// Move each distribution along the line of `Shift` and spread it around its centre.
COMPILED void shift(const Rows& probabilities, const Rows& below, double slope, double offset,
                    double spread, const Numbers& centre_logs, const Numbers& upper_logs,
                    const Numbers& knots, const Numbers& tail, const Rows& moved) {
    const Int last_knot = knots.size - 1;
    for (Int row = 0; row < moved.rows; row++) {
        const Numbers mine = below[row];
        double centre = 0.0;
        for (Int at = 0; at < centre_logs.size; at++) {
            centre += probabilities.at(row, at) * centre_logs[at];
        }
        Int knot = 0;
        for (Int at = 0; at < upper_logs.size; at++) {
            // The length that is moved to the bin's upper edge; these lengths ascend.
            const double log_tokens =
                (upper_logs[at] - (slope * centre + offset)) / spread + centre;
            const double tokens = exp(log_tokens);
            while (knot < last_knot && knots[knot + 1] < tokens) knot += 1;
            if (knot == last_knot) {
                moved.at(row, at) = 1.0;
                continue;
            }
            const double low = level_of_knot(mine, tail, knot);
            const double high = level_of_knot(mine, tail, knot + 1);
            const double share = (tokens - knots[knot]) / (knots[knot + 1] - knots[knot]);
            moved.at(row, at) = low + share * (high - low);
        }
        moved.at(row, upper_logs.size) = 1.0;
    }
}

}  // namespace foretell::models

#ifndef __clang__
#pragma GCC pop_options
#endif
