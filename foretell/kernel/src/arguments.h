// Arguments from Python: numbers, arrays by the buffer protocol, and tuples of arrays.

#pragma once

#include "engines.h"
#include "forecasts.h"
#include "models.h"
#include "python.h"
#include "received.h"
#include "regression.h"

namespace foretell::python {

// The arguments of one call, read in order. The buffers of arrays are held until the call ends.
// After an error, which is set as Python's exception, everything read is empty.
class Arguments {
  public:
    Arguments(PyObject* const* arguments, Py_ssize_t count, Py_ssize_t expected)
        : next_(arguments), held_(0), ok_(count == expected) {
        if (!ok_) {
            PyErr_Format(PyExc_TypeError, "need %zd arguments, got %zd", expected, count);
        }
    }
    ~Arguments() {
        for (int i = 0; i < held_; i++) PyBuffer_Release(&views_[i]);
    }
    Arguments(const Arguments&) = delete;
    Arguments& operator=(const Arguments&) = delete;

    bool ok() const { return ok_; }

    Int integer() {
        if (!ok_) return 0;
        const long long number = PyLong_AsLongLong(*next_++);
        if (number == -1 && PyErr_Occurred()) ok_ = false;
        return number;
    }
    double number() {
        if (!ok_) return 0.0;
        const double number = PyFloat_AsDouble(*next_++);
        if (number == -1.0 && PyErr_Occurred()) ok_ = false;
        return number;
    }
    bool flag() {
        if (!ok_) return false;
        const int is_true = PyObject_IsTrue(*next_++);
        if (is_true < 0) ok_ = false;
        return is_true > 0;
    }

    // An array of any dimensions, flat.
    template <class T> Array<T> array() { return array_of<T>(next()); }
    // Rows as long as the last dimension.
    template <class T> Table<T> table() { return table_of<T>(next(), false); }
    // One row for each item of the first dimension.
    template <class T> Table<T> rows() { return table_of<T>(next(), true); }

    // Rows given as bytes.
    template <class T> Array<T> packed() {
        const Py_buffer* found = view(next(), PyBUF_SIMPLE, 1);
        if (found == nullptr) return {nullptr, 0};
        return {(T*)found->buf, Int(found->len / Py_ssize_t(sizeof(T)))};
    }

    // A scalar of a structured array, which shares its memory.
    template <class T> T& record() { return record_of<T>(next()); }

    step_time::Sums sums() {
        PyObject* parts = tuple_of(next(), 6);
        Int read[6] = {};
        for (int i = 0; ok_ && i < 6; i++) {
            read[i] = PyLong_AsLongLong(at(parts, i));
            if (read[i] == -1 && PyErr_Occurred()) ok_ = false;
        }
        return {read[0], read[1], read[2], read[3], read[4], read[5]};
    }
    step_time::StepTime step_time() {
        PyObject* parts = tuple_of(next(), 3);
        return {array_of<double>(at(parts, 0)), array_of<double>(at(parts, 1)),
                table_of<Int>(at(parts, 2), false)};
    }
    step_time::StepTimes step_times() {
        PyObject* parts = tuple_of(next(), 9);
        return {table_of<double>(at(parts, 0), false), array_of<Int>(at(parts, 1)),
                table_of<double>(at(parts, 2), false), table_of<Int>(at(parts, 3), false),
                {array_of<Int>(at(parts, 4)), table_of<double>(at(parts, 5), false),
                 array_of<Int>(at(parts, 6)), array_of<double>(at(parts, 7)),
                 array_of<double>(at(parts, 8))}};
    }
    State state(Broken& broken) {
        PyObject* parts = tuple_of(next(), 7);
        return {record_of<Engine>(at(parts, 0)), array_of<Sequence>(at(parts, 1)),
                array_of<Int32>(at(parts, 2)),   array_of<Block>(at(parts, 3)),
                array_of<Place>(at(parts, 4)),   array_of<Int32>(at(parts, 5)),
                array_of<Input>(at(parts, 6)),   broken};
    }
    live::Live live() {
        PyObject* parts = tuple_of(next(), 10);
        return {array_of<LiveRecord>(at(parts, 0)), array_of<Sequence>(at(parts, 1)),
                array_of<Int32>(at(parts, 2)),      array_of<Block>(at(parts, 3)),
                array_of<Place>(at(parts, 4)),      array_of<Int32>(at(parts, 5)),
                array_of<Input>(at(parts, 6)),      array_of<Entry>(at(parts, 7)),
                array_of<Entry>(at(parts, 8)),      array_of<Belief>(at(parts, 9))};
    }
    engines::Engines engines() {
        PyObject* parts = tuple_of(next(), 5);
        return {array_of<Placed>(at(parts, 0)), array_of<double>(at(parts, 1)),
                array_of<Int>(at(parts, 2)), array_of<double>(at(parts, 3)),
                array_of<Int>(at(parts, 4))};
    }
    start::Snapshots snapshots() {
        PyObject* parts = tuple_of(next(), 3);
        return {array_of<Snapshot>(at(parts, 0)), table_of<Request>(at(parts, 1), false),
                table_of<Input>(at(parts, 2), false)};
    }
    start::Scratch scratch(Broken& broken) {
        PyObject* parts = tuple_of(next(), 9);
        return {array_of<Records>(at(parts, 0)),
                table_of<Sequence>(at(parts, 1), false),
                table_of<Entry>(at(parts, 2), false),
                table_of<Int32>(at(parts, 3), false),
                table_of<Int32>(at(parts, 4), false),
                array_of<Int>(at(parts, 5)),
                array_of<Block>(at(parts, 6)),
                array_of<Place>(at(parts, 7)),
                table_of<Input>(at(parts, 8), false),
                broken};
    }
    forecasts::Call call(Broken& broken) {
        if (ok_ && lengths::HAZARD[lengths::LAST] == 0.0) {
            PyErr_SetString(PyExc_RuntimeError, "foretell.kernel.lengths is not loaded");
            ok_ = false;
        }
        return {snapshots(),        scratch(broken), step_times(), packed<Question>(),
                packed<Arrival>(), number(),        integer()};
    }
    forecasts::Answers answers() {
        PyObject* parts = tuple_of(next(), 5);
        return {table_of<double>(at(parts, 0), false), table_of<double>(at(parts, 1), true),
                array_of<Mark>(at(parts, 2)), table_of<double>(at(parts, 3), false),
                table_of<Int>(at(parts, 4), false)};
    }
    forecasts::Costs costs() {
        PyObject* parts = tuple_of(next(), 6);
        return {array_of<Kept>(at(parts, 0)),          table_of<double>(at(parts, 1), false),
                table_of<double>(at(parts, 2), false), array_of<Mark>(at(parts, 3)),
                array_of<Int>(at(parts, 4)),           table_of<double>(at(parts, 5), false)};
    }

  private:
    static constexpr int MOST_ARRAYS = 48;

    PyObject* const* next_;
    Py_buffer views_[MOST_ARRAYS];
    int held_;
    bool ok_;

    PyObject* next() { return ok_ ? *next_++ : nullptr; }
    PyObject* at(PyObject* parts, int i) const { return ok_ ? PyTuple_GetItem(parts, i) : nullptr; }

    PyObject* tuple_of(PyObject* object, Py_ssize_t size) {
        if (!ok_) return nullptr;
        if (!PyTuple_Check(object) || PyTuple_Size(object) != size) {
            PyErr_Format(PyExc_TypeError, "need a tuple of %zd", size);
            ok_ = false;
            return nullptr;
        }
        return object;
    }
    const Py_buffer* view(PyObject* object, int flags, size_t item) {
        if (!ok_) return nullptr;
        Py_buffer* view = &views_[held_];
        if (PyObject_GetBuffer(object, view, flags) < 0) {
            ok_ = false;
            return nullptr;
        }
        held_ += 1;
        if (size_t(view->itemsize) != item) {
            PyErr_Format(PyExc_TypeError, "need items of %zu bytes, not of %zd", item,
                         view->itemsize);
            ok_ = false;
            return nullptr;
        }
        return view;
    }
    template <class T> Array<T> array_of(PyObject* object) {
        const Py_buffer* found = view(object, PyBUF_ND, sizeof(T));
        if (found == nullptr) return {nullptr, 0};
        return {(T*)found->buf, Int(found->len / Py_ssize_t(sizeof(T)))};
    }
    template <class T> Table<T> table_of(PyObject* object, bool by_first) {
        const Py_buffer* found = view(object, PyBUF_ND, sizeof(T));
        if (found == nullptr || found->ndim < 1) return {nullptr, 0, 0};
        Int rows = 1, columns = 1;
        for (int i = 0; i < found->ndim; i++) {
            const bool is_row = by_first ? i == 0 : i < found->ndim - 1;
            (is_row ? rows : columns) *= found->shape[i];
        }
        return {(T*)found->buf, rows, columns};
    }
    template <class T> T& record_of(PyObject* object) {
        static T none;
        const Py_buffer* found = view(object, PyBUF_SIMPLE, sizeof(T));
        return found == nullptr ? none : *(T*)found->buf;
    }
};

}  // namespace foretell::python
