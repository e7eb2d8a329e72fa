// Checks of received rows, since other compiled code does not check what it reads.

#pragma once

#include "start.h"

namespace foretell::received {

using namespace start;

// The place of a column in rows of `stride` bytes: `width` numbers in each row, from byte `at` on.
struct Place {
    Int kind, at, width, stride;
};

constexpr Int FLOAT64 = 0, INT64 = 1, INT32 = 2;  // `Column.Kind` of predictor.proto

template <class To, class From>
INLINED const char* copy(const Array<char>& rows, const Place& place, const Array<char>& values) {
    const Int count = rows.size / place.stride;
    if (values.size != count * place.width * Int(sizeof(From))) return "size";
    const From* next = (const From*)values.data;
    bool fits = true;
    for (char* row = rows.data; row < rows.data + rows.size; row += place.stride) {
        To* numbers = (To*)(row + place.at);
        for (Int i = 0; i < place.width; i++, next++) {
            numbers[i] = To(*next);
            if (sizeof(From) > sizeof(To)) fits &= From(numbers[i]) == *next;
        }
    }
    return fits ? nullptr : "range";
}

// Write a column, numbers of `kind`, to its place in rows; returns an error or null.
//
// Integers may be wider or narrower than in the rows.
COMPILED const char* fill(const Array<char>& rows, const Place& place, Int kind,
                          const Array<char>& values) {
    if (place.kind == FLOAT64 && kind == FLOAT64) return copy<double, double>(rows, place, values);
    if (place.kind == INT64 && kind == INT64) return copy<Int, Int>(rows, place, values);
    if (place.kind == INT64 && kind == INT32) return copy<Int, int32_t>(rows, place, values);
    if (place.kind == INT32 && kind == INT64) return copy<int32_t, Int>(rows, place, values);
    if (place.kind == INT32 && kind == INT32) return copy<int32_t, int32_t>(rows, place, values);
    return "size";
}

// Whether a length distribution is valid: ascending tokens, and a tail.
INLINED bool is_length(const double* length) {
    bool ok = length[LAST + 1] >= 0.0 && length[LAST + 1] < INFINITY;
    double before = 0.0;
    for (Int i = 0; i <= LAST; i++) {
        ok &= length[i] >= before && length[i] < INFINITY;
        before = length[i];
    }
    return ok;
}

INLINED bool is_target(double seconds) { return seconds >= 0.0 && seconds < INFINITY; }

// The name of the first field of type `T`, from `at` on, that is not in [0, its entry of `most`];
// null if there is none. Fields with an infinite entry are not checked.
template <class T, class Row>
INLINED const char* beyond(const Row& row, size_t at, const Array<double>& most) {
    Int place = 0;
    for (auto& field : Described<Row>::rows) {
        if (field.offset < at || place == most.size) continue;
        const Int number = *(const T*)((const char*)&row + field.offset);
        const double highest = most[place++];
        if (highest < INFINITY && !(number >= 0 && double(number) <= highest)) return field.name;
    }
    return nullptr;
}

// What is impossible in `rows`, which must have `inputs` inputs in total; null if nothing is.
// `most`: the greatest value of each 32-bit number.
COMPILED const char* untrue(const Array<Request>& rows, const Array<double>& most, Int inputs) {
    for (auto& row : rows) {
        if (!is_length(row.length)) return "length";
        if (!is_target(row.ttft_target_s) || !is_target(row.tpot_target_s)) return "targets";
        if (!isfinite(row.arrival_s)) return "time";
        const char* found = beyond<Int32>(row, offsetof(Request, prompt), most);
        if (found != nullptr) return found;
        if (row.left > row.blocks) return "left";
        inputs -= row.inputs;
    }
    return inputs == 0 ? nullptr : "inputs";
}

// The same for requests on their way, of at most `sequences` sequences in total. `most`: the
// greatest value of each number from `prompt` on.
COMPILED const char* untrue(const Array<Arrival>& rows, const Array<double>& most, Int sequences) {
    if (rows.size > sequences) return "count";
    for (auto& row : rows) {
        if (!is_length(row.length)) return "length";
        if (!is_target(row.ttft_target_s) || !is_target(row.tpot_target_s)) return "targets";
        if (!isfinite(row.at_s) || !(row.every_s >= 0.0 && row.every_s <= most[0])) return "time";
        const char* found = beyond<Int>(row, offsetof(Arrival, prompt), most);
        if (found != nullptr) return found;
        if (row.sequences < 1 || row.sequences > sequences) return "sequences";
        sequences -= row.sequences;
    }
    return nullptr;
}

// Whether the lengths of all rows are certain.
COMPILED bool are_certain(const Array<Request>& rows) {
    for (auto& row : rows) {
        if (row.length[0] != row.length[LAST] || row.length[LAST + 1] != 0.0) return false;
    }
    return true;
}

}  // namespace foretell::received
