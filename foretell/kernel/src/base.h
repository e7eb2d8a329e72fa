// Numbers, arrays and broken invariants.

#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// No exceptions and no C++ library, so that a C compiler's libraries are enough to link.
#define COMPILED [[maybe_unused]] static
#define INLINED [[maybe_unused]] static inline __attribute__((always_inline))
#define MEMBER inline __attribute__((always_inline))

namespace foretell {

using Int = int64_t;

// A number stored in 32 bits; arithmetic is in 64 bits.
struct Int32 {
    int32_t value;
    MEMBER operator Int() const { return value; }
    MEMBER Int32& operator=(Int number) { return value = (int32_t)number, *this; }
    MEMBER Int32& operator+=(Int number) { return *this = value + number; }
    MEMBER Int32& operator-=(Int number) { return *this = value - number; }
};

// As in Python: of equal arguments the first, and also if one is NaN.
INLINED Int min(Int a, Int b) { return b < a ? b : a; }
INLINED Int max(Int a, Int b) { return b > a ? b : a; }
INLINED double min(double a, double b) { return b < a ? b : a; }
INLINED double max(double a, double b) { return b > a ? b : a; }

// Python's `a // b`; 0 if `b` is 0.
INLINED Int floor_div(Int a, Int b) {
    if (b == 0) return 0;
    Int quotient = a / b;
    return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

// Python's `a % b`; 0 if `b` is 0.
INLINED Int floor_mod(Int a, Int b) { return b == 0 ? 0 : a - floor_div(a, b) * b; }

// Python's `a // 2`.
INLINED Int floor_half(Int a) { return a >> 1; }

// `a / b` rounded up; 0 if `b` is 0.
INLINED Int ceil_div(Int a, Int b) { return -floor_div(-a, b); }

// The nearest integer, ties to even, as Python's `round`.
INLINED Int round_even(double x) {
    const double shift = 6755399441055744.0;  // 1.5 * 2**52: such a number has no fraction bits
    return fabs(x) < 1e15 ? (Int)((x + shift) - shift) : (Int)x;
}

// `size` contiguous items.
template <class T> struct Array {
    T* data;
    Int size;
    MEMBER T& operator[](Int i) const { return data[i]; }
    MEMBER T& last() const { return data[size - 1]; }
    MEMBER T* begin() const { return data; }
    MEMBER T* end() const { return data + size; }
    MEMBER Array first(Int count) const { return {data, count}; }
    MEMBER Array from(Int start) const { return {data + start, size - start}; }
};

// Contiguous rows of equal length.
template <class T> struct Table {
    T* data;
    Int rows, columns;
    MEMBER Array<T> operator[](Int row) const { return {data + row * columns, columns}; }
    MEMBER T& at(Int row, Int column) const { return data[row * columns + column]; }
    MEMBER Table first(Int count) const { return {data, count, columns}; }
    MEMBER Table from(Int start) const {
        return {data + start * columns, rows - start, columns};
    }
};

// What happens when an invariant is broken. In a state that was computed here it is a bug: the
// process ends. In a state that was received it is an input error: the first broken invariant is
// noted, work on the state stops as soon as possible, and the caller gets an error.
struct Broken {
    bool ends_process;
    const char* invariant;  // null: none
};

static __attribute__((cold, noinline)) void note_broken(Broken& broken, const char* invariant) {
    if (broken.ends_process) {
        fprintf(stderr, "foretell: broken invariant of an engine's twin: %s\n", invariant);
        fflush(stderr);
        abort();
    }
    if (broken.invariant == nullptr) broken.invariant = invariant;
}

INLINED bool is_whole(const Broken& broken) {
    return __builtin_expect(broken.invariant == nullptr, 1);
}

INLINED void require(Broken& broken, bool holds, const char* invariant) {
    if (__builtin_expect(!holds, 0)) note_broken(broken, invariant);
}

}  // namespace foretell
