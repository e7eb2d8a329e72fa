// Lookups in measured tables, all of which lie in one array.
//
// A row of `layout` describes one table: where its axes begin in `values`, and the lengths of up to
// four axes. The axes follow each other, then come the seconds in row-major order. An axis has at
// least two points; length zero means that there is no table. `latency.tables` packs them.

#pragma once

#include "base.h"

namespace foretell::tables {

// Rows of `layout`, described in `foretell.kernel.tables`.
constexpr Int TOKENS = 0, SEQUENCES = 1, RANKS = 2, GRAPH_SIZES = 3, PREFILL = 4, DECODE = 5;
constexpr Int MIXED = 6, DECODE_STEPS = 7;
constexpr Int TABLES = 8, LAYOUT_WIDTH = 5;

using Values = Array<double>;
using Layout = Table<Int>;

// A place on an axis: the index of the point before, and the fraction of the way to the next.
struct Located {
    Int index;
    double share;
};

// Locate `x` on the axis of `size` ascending values from `start`.
//
// The index is counted from `start`. The share is 0 below the first point, above 1 beyond the last.
INLINED Located locate(const Values& values, Int start, Int size, double x) {
    if (x <= values[start]) return {0, 0.0};
    Int low = start, high = start + size - 1;
    while (high - low > 1) {
        const Int middle = (low + high) >> 1;
        if (values[middle] <= x) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return {low - start, (x - values[low]) / (values[low + 1] - values[low])};
}

// The least CUDA graph size that holds `tokens`; `tokens` itself if none does.
INLINED double padded(const Values& values, const Layout& layout, double tokens) {
    Int low = layout.at(GRAPH_SIZES, 0), high = low + layout.at(GRAPH_SIZES, 1);
    const Int end = high;
    while (low < high) {
        const Int middle = (low + high) >> 1;
        if (values[middle] < tokens) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < end ? values[low] : tokens;
}

// Seconds by a table of one axis: linear between its points, proportional beyond the last.
INLINED double curve_s(const Values& values, const Layout& layout, Int table, double x) {
    const Int start = layout.at(table, 0), size = layout.at(table, 1), last = start + size - 1;
    if (x >= values[last]) return values[last + size] * x / values[last];
    const Located found = locate(values, start, size, x);
    const Int at = start + size + found.index;
    return values[at] + found.share * (values[at + 1] - values[at]);
}

// Bilinear interpolation between the values at `at`, the next one, and the two one row below.
INLINED double cell(const Values& values, Int at, Int columns, double down, double right) {
    const double upper = values[at] + right * (values[at + 1] - values[at]);
    const Int below = at + columns;
    const double lower = values[below] + right * (values[below + 1] - values[below]);
    return upper + down * (lower - upper);
}

INLINED double in_row_s(const Values& values, const Layout& layout, Int table, Located row,
                        double y) {
    const Int start = layout.at(table, 0), rows = layout.at(table, 1);
    const Int columns = layout.at(table, 2);
    const Located column = locate(values, start + rows, columns, y);
    const Int at = start + rows + columns + row.index * columns + column.index;
    return max(0.0, cell(values, at, columns, row.share, column.share));
}

// Seconds by a table of two axes, bilinear.
INLINED double grid2_s(const Values& values, const Layout& layout, Int table, double x, double y) {
    const Located row = locate(values, layout.at(table, 0), layout.at(table, 1), x);
    return in_row_s(values, layout, table, row, y);
}

// Locate `sequences` on the first axis of the table of decodes, as `locate` does.
INLINED Located decode_row(const Values& values, const Layout& layout, Int sequences) {
    const Int start = layout.at(DECODE_STEPS, 0), count = layout.at(DECODE_STEPS, 1);
    if (sequences < count) {
        const Int at = start + count + sequences;
        return {Int(values[at]), values[at + count]};
    }
    return locate(values, layout.at(DECODE, 0), layout.at(DECODE, 1), double(sequences));
}

// Seconds of attention for that many decodes.
INLINED double decode_s(const Values& values, const Layout& layout, Int sequences, double context) {
    const Located row = decode_row(values, layout, sequences);
    return in_row_s(values, layout, DECODE, row, context);
}

// Seconds of everything but attention.
INLINED double dense_s(const Values& values, const Layout& layout, Int tokens, Int sequences) {
    const double x = padded(values, layout, double(tokens));
    return curve_s(values, layout, TOKENS, x) +
           curve_s(values, layout, SEQUENCES, double(sequences));
}

// Seconds of everything but attention for that many decodes.
INLINED double dense_decode_s(const Values& values, const Layout& layout, Int sequences) {
    if (sequences < layout.at(DECODE_STEPS, 1)) {
        return values[layout.at(DECODE_STEPS, 0) + sequences];
    }
    return dense_s(values, layout, sequences, sequences);
}

// Seconds by a table of four axes, multilinear.
INLINED double grid4_s(const Values& values, const Layout& layout, Int table, double q, double p,
                       double n, double c) {
    const Int start = layout.at(table, 0), n_q = layout.at(table, 1), n_p = layout.at(table, 2);
    const Int n_n = layout.at(table, 3), n_c = layout.at(table, 4);
    const Located i = locate(values, start, n_q, q), j = locate(values, start + n_q, n_p, p);
    const Located k = locate(values, start + n_q + n_p, n_n, n);
    const Located m = locate(values, start + n_q + n_p + n_n, n_c, c);
    const Int plane = n_n * n_c;
    Int at = start + n_q + n_p + n_n + n_c;
    at += (i.index * n_p + j.index) * plane + k.index * n_c + m.index;
    double near = cell(values, at, n_c, k.share, m.share);
    near += j.share * (cell(values, at + plane, n_c, k.share, m.share) - near);
    at += n_p * plane;
    double far = cell(values, at, n_c, k.share, m.share);
    far += j.share * (cell(values, at + plane, n_c, k.share, m.share) - far);
    return max(0.0, near + i.share * (far - near));
}

// The sum of `decode_s` at contexts `first`, `first + 1`, ..., `steps` of them.
//
// Between two points of the axis of contexts the values are an arithmetic series.
INLINED double decode_run_s(const Values& values, const Layout& layout, Int sequences, double first,
                            Int steps) {
    const Int start = layout.at(DECODE, 0), rows = layout.at(DECODE, 1);
    const Int columns = layout.at(DECODE, 2), axis = start + rows;
    const Located row = decode_row(values, layout, sequences);
    const Int cells = axis + columns + row.index * columns;
    Located column = locate(values, axis, columns, first);
    double total = 0.0;
    Int taken = 0;
    for (;;) {
        const double y = first + double(taken);
        Int left = steps - taken;
        const double before = values[axis + column.index], beyond = values[axis + column.index + 1];
        double slope = 1.0 / (beyond - before);
        // The steps up to the next point lie on one line; after the last point, all of them do.
        if (y < before) {
            left = min(left, Int(before - y) + 1);
            slope = 0.0;
        } else if (column.index < columns - 2) {
            left = min(left, Int(beyond - y) + 1);
        }
        const Int at = cells + column.index;
        double ends = max(0.0, cell(values, at, columns, row.share, column.share));
        column.share += slope * double(left - 1);
        ends += max(0.0, cell(values, at, columns, row.share, column.share));
        total += ends * double(left) / 2.0;
        taken += left;
        if (taken >= steps) return total;
        column = locate(values, axis, columns, first + double(taken));
    }
}

}  // namespace foretell::tables
