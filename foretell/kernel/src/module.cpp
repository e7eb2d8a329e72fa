// The extension module `foretell.kernel.compiled`, called by Python. `compiled.pyi` has the types.

#include "arguments.h"

namespace foretell::python {

// Return if the call's arguments could not be read; Python's exception is set then.
#define READ(arguments) \
    if (!(arguments).ok()) return nullptr

#define FUNCTION(name) static PyObject* name(PyObject*, PyObject* const* given, Py_ssize_t count)

// Release the GIL during long work, so that other threads of Python can run.
#define WITHOUT_GIL(work) \
    Py_BEGIN_ALLOW_THREADS \
    work; \
    Py_END_ALLOW_THREADS

static PyObject* nothing() { return Py_NewRef(Py_None); }
static PyObject* integer(Int number) { return PyLong_FromLongLong(number); }
static PyObject* floating(double number) { return PyFloat_FromDouble(number); }
static PyObject* located(const tables::Located& found) {
    return Py_BuildValue("(Ld)", (long long)found.index, found.share);
}

static PyObject* IMPOSSIBLE_STATE;

// `result`, unless an invariant of a received state is broken.
static PyObject* unless(const Broken& broken, PyObject* result) {
    if (is_whole(broken)) return result;
    Py_XDECREF(result);
    PyErr_SetString(IMPOSSIBLE_STATE, broken.invariant);
    return nullptr;
}

// --- one engine ----------------------------------------------------------------------------------

FUNCTION(advance) {
    Arguments a(given, count, 8);
    const auto live = a.live();
    const auto model = a.step_time();
    const double now_s = a.number();
    const bool lands = a.flag();
    const Int steps = a.integer(), most_tokens = a.integer(), most_seqs = a.integer();
    const auto outcome = a.array<Int>();
    READ(a);
    Int scheduled;
    const live::Limits limits = {most_tokens, most_seqs};
    Broken broken = {true, nullptr};
    WITHOUT_GIL(
        scheduled = live::advance(live, model, now_s, lands, steps, limits, outcome.data, broken));
    return unless(broken, integer(scheduled));
}

FUNCTION(run_steps) {
    Arguments a(given, count, 7);
    const auto live = a.live();
    const auto model = a.step_time();
    const Int steps = a.integer(), most_tokens = a.integer(), most_seqs = a.integer();
    const auto outcome = a.array<Int>();
    const auto shapes = a.table<Int>();
    READ(a);
    Int made;
    const live::Limits limits = {most_tokens, most_seqs};
    Broken broken = {true, nullptr};
    WITHOUT_GIL(made = live::run_steps(live, model, steps, limits, outcome.data, shapes, broken));
    return unless(broken, integer(made));
}

FUNCTION(count_free) {
    Arguments a(given, count, 2);
    const auto live = a.live();
    const double now_s = a.number();
    READ(a);
    live::count_free(live, now_s);
    return nothing();
}

FUNCTION(enqueue) {
    Arguments a(given, count, 2);
    Broken broken = {true, nullptr};
    const auto state = a.state(broken);
    const Int slot = a.integer();
    READ(a);
    queues::enqueue(state, slot);
    return nothing();
}

FUNCTION(abort_sequence) {
    Arguments a(given, count, 2);
    Broken broken = {true, nullptr};
    const auto state = a.state(broken);
    const Int slot = a.integer();
    READ(a);
    output::drop(state, slot);
    return nothing();
}

FUNCTION(check) {
    Arguments a(given, count, 1);
    Broken broken = {false, nullptr};
    const auto state = a.state(broken);
    READ(a);
    output::check(state);
    return broken.invariant == nullptr ? nothing() : PyUnicode_FromString(broken.invariant);
}

FUNCTION(limited) {
    Arguments a(given, count, 3);
    Broken broken = {true, nullptr};
    const auto state = a.state(broken);
    const Int slot = a.integer(), total = a.integer();
    READ(a);
    return integer(start::limited(state.engine, state.sequences[slot], total));
}

FUNCTION(drafted_tokens) {
    Arguments a(given, count, 2);
    const auto& engine = a.record<Engine>();
    const auto& seq = a.record<Sequence>();
    READ(a);
    return integer(drafts::drafted_tokens(engine, seq));
}

FUNCTION(accepted_tokens) {
    Arguments a(given, count, 3);
    const auto& engine = a.record<Engine>();
    const auto& seq = a.record<Sequence>();
    const Int most = a.integer();
    READ(a);
    return integer(drafts::accepted_tokens(engine, seq, most));
}

// --- many engines --------------------------------------------------------------------------------

FUNCTION(step) {
    Arguments a(given, count, 3);
    const auto engines = a.engines();
    const Int index = a.integer();
    const double now_s = a.number();
    READ(a);
    Broken broken = {true, nullptr};
    WITHOUT_GIL(engines::step(engines, index, now_s, broken));
    return unless(broken, nothing());
}

FUNCTION(run) {
    Arguments a(given, count, 3);
    const auto engines = a.engines();
    const double until_s = a.number();
    const bool each = a.flag();
    READ(a);
    bool stopped;
    Broken broken = {true, nullptr};
    WITHOUT_GIL(stopped = engines::run(engines, until_s, each, broken));
    return unless(broken, PyBool_FromLong(stopped));
}

FUNCTION(publish_all) {
    Arguments a(given, count, 4);
    const auto engines = a.engines();
    const auto snapshots = a.snapshots();
    const auto indices = a.array<Int>();
    const double now_s = a.number();
    READ(a);
    WITHOUT_GIL(engines::publish_all(engines, snapshots, indices, now_s));
    return nothing();
}

// --- what predictors publish ---------------------------------------------------------------------

// The name of what is impossible; empty if nothing is.
static PyObject* text(const char* found) { return PyUnicode_FromString(found ? found : ""); }

FUNCTION(fill_column) {
    Arguments a(given, count, 7);
    const auto rows = a.packed<char>();
    const Int own = a.integer(), at = a.integer(), width = a.integer(), stride = a.integer();
    const Int kind = a.integer();
    const auto values = a.packed<char>();
    READ(a);
    return text(received::fill(rows, {own, at, width, stride}, kind, values));
}

template <class Row> static PyObject* untrue(PyObject* const* given, Py_ssize_t count) {
    Arguments a(given, count, 3);
    const auto rows = a.packed<Row>();
    const auto most = a.array<double>();
    const Int others = a.integer();
    READ(a);
    return text(received::untrue(rows, most, others));
}

FUNCTION(untrue_requests) { return untrue<Request>(given, count); }
FUNCTION(untrue_arrivals) { return untrue<Arrival>(given, count); }

FUNCTION(are_certain) {
    Arguments a(given, count, 1);
    const auto rows = a.packed<Request>();
    READ(a);
    return PyBool_FromLong(received::are_certain(rows));
}

// --- forecasts -----------------------------------------------------------------------------------

FUNCTION(forecast) {
    Arguments a(given, count, 8);
    Broken broken = {false, nullptr};
    const auto call = a.call(broken);
    const auto answers = a.answers();
    READ(a);
    WITHOUT_GIL(forecasts::forecast(call, answers));
    return unless(broken, nothing());
}

FUNCTION(cost) {
    Arguments a(given, count, 8);
    Broken broken = {false, nullptr};
    const auto call = a.call(broken);
    const auto costs = a.costs();
    READ(a);
    WITHOUT_GIL(forecasts::cost(call, costs));
    return unless(broken, nothing());
}

FUNCTION(follow_others) {
    Arguments a(given, count, 8);
    Broken broken = {false, nullptr};
    const auto call = a.call(broken);
    const auto costs = a.costs();
    READ(a);
    Int others;
    WITHOUT_GIL((together::forget_steps(call),
                 others = forecasts::follow(call, call.questions[0], 0, costs)));
    return unless(broken, integer(others));
}

FUNCTION(restore) {
    Arguments a(given, count, 3);
    Broken broken = {false, nullptr};
    const auto snapshots = a.snapshots();
    const Int index = a.integer();
    const auto scratch = a.scratch(broken);
    READ(a);
    start::restore(snapshots, index, scratch);
    return nothing();
}

// --- step times ----------------------------------------------------------------------------------

FUNCTION(step_s) {
    Arguments a(given, count, 7);
    const auto model = a.step_time();
    const Int prefill_seqs = a.integer(), prefill_tokens = a.integer(), pairs = a.integer();
    const Int decode_seqs = a.integer(), decode_pairs = a.integer(), drafts = a.integer();
    READ(a);
    return floating(step_time::step_s(
        model, {prefill_seqs, prefill_tokens, pairs, decode_seqs, decode_pairs, drafts}));
}

FUNCTION(shape_s) {
    Arguments a(given, count, 2);
    const auto model = a.step_time();
    const auto sums = a.sums();
    READ(a);
    return floating(step_time::step_s(model, sums));
}

FUNCTION(own_s) {
    Arguments a(given, count, 2);
    const auto model = a.step_time();
    const auto sums = a.sums();
    READ(a);
    return floating(step_time::own_s(model, sums));
}

FUNCTION(ranks_s) {
    Arguments a(given, count, 2);
    const auto model = a.step_time();
    const double tokens = a.number();
    READ(a);
    return floating(step_time::ranks_s(model, tokens));
}

FUNCTION(decode_run_s) {
    Arguments a(given, count, 4);
    const auto model = a.step_time();
    const Int decode_seqs = a.integer(), decode_pairs = a.integer(), steps = a.integer();
    READ(a);
    return floating(step_time::decode_run_s(model, decode_seqs, decode_pairs, steps));
}

FUNCTION(locate) {
    Arguments a(given, count, 4);
    const auto values = a.array<double>();
    const Int start = a.integer(), size = a.integer();
    const double x = a.number();
    READ(a);
    return located(tables::locate(values, start, size, x));
}

FUNCTION(dense_s) {
    Arguments a(given, count, 4);
    const auto values = a.array<double>();
    const auto layout = a.table<Int>();
    const Int tokens = a.integer(), sequences = a.integer();
    READ(a);
    return floating(tables::dense_s(values, layout, tokens, sequences));
}

FUNCTION(curve_s) {
    Arguments a(given, count, 4);
    const auto values = a.array<double>();
    const auto layout = a.table<Int>();
    const Int table = a.integer();
    const double x = a.number();
    READ(a);
    return floating(tables::curve_s(values, layout, table, x));
}

FUNCTION(grid2_s) {
    Arguments a(given, count, 5);
    const auto values = a.array<double>();
    const auto layout = a.table<Int>();
    const Int table = a.integer();
    const double x = a.number(), y = a.number();
    READ(a);
    return floating(tables::grid2_s(values, layout, table, x, y));
}

FUNCTION(grid4_s) {
    Arguments a(given, count, 7);
    const auto values = a.array<double>();
    const auto layout = a.table<Int>();
    const Int table = a.integer();
    const double q = a.number(), p = a.number(), n = a.number(), c = a.number();
    READ(a);
    return floating(tables::grid4_s(values, layout, table, q, p, n, c));
}

// --- offline requests beside online ones ---------------------------------------------------------

FUNCTION(fit) {
    Arguments a(given, count, 10);
    const auto sequences = a.array<Sequence>();
    const auto running = a.array<Int32>();
    const auto model = a.step_time();
    const auto online = a.sums();
    const Int first = a.integer(), resident = a.integer(), computed = a.integer();
    const Int wanted = a.integer(), budget = a.integer();
    const double most_s = a.number();
    READ(a);
    const auto found = cosched_plan::fit(sequences, running, model, online, first, resident,
                                         computed, wanted, budget, most_s);
    return Py_BuildValue("(LL)", (long long)found.decodes, (long long)found.tokens);
}

FUNCTION(slack_s) {
    Arguments a(given, count, 4);
    const double ttft_s = a.number(), tpot_s = a.number(), waited_s = a.number();
    const Int tokens = a.integer();
    READ(a);
    return floating(offline::slack_s(ttft_s, tpot_s, waited_s, tokens));
}

FUNCTION(limit_s) {
    Arguments a(given, count, 4);
    const double alone_s = a.number(), slack_s = a.number();
    const bool as_alone = a.flag();
    const double arrival_s = a.number();
    READ(a);
    return floating(offline::limit_s(alone_s, slack_s, as_alone, arrival_s));
}

FUNCTION(arrival_s) {
    Arguments a(given, count, 2);
    const double shortest_s = a.number(), ttft_s = a.number();
    READ(a);
    return floating(offline::arrival_s(shortest_s, ttft_s));
}

FUNCTION(worth) {
    Arguments a(given, count, 5);
    const Int step_tokens = a.integer(), cached = a.integer(), computed = a.integer();
    const Int lost = a.integer();
    const double step_s = a.number();
    READ(a);
    return floating(offline::worth(step_tokens, cached, computed, lost, step_s));
}

// --- lengths -------------------------------------------------------------------------------------

FUNCTION(set_levels) {
    Arguments a(given, count, 4);
    const auto hazard = a.array<double>(), per_hazard = a.array<double>();
    const auto stratum_hazard = a.array<double>();
    const auto shift = a.array<Int>();
    READ(a);
    if (hazard.size != lengths::KNOTS || per_hazard.size != lengths::KNOTS - 1 ||
        stratum_hazard.size != lengths::STRATA || shift.size != lengths::STRATA) {
        PyErr_SetString(PyExc_ValueError, "another number of levels than is compiled");
        return nullptr;
    }
    for (Int i = 0; i < lengths::KNOTS; i++) lengths::HAZARD[i] = hazard[i];
    for (Int i = 0; i < lengths::KNOTS - 1; i++) lengths::PER_HAZARD[i] = per_hazard[i];
    for (Int i = 0; i < lengths::STRATA; i++) lengths::STRATUM_HAZARD[i] = stratum_hazard[i];
    for (Int i = 0; i < lengths::STRATA; i++) lengths::SHIFT[i] = shift[i];
    return nothing();
}

FUNCTION(hazard) {
    Arguments a(given, count, 2);
    const auto row = a.array<double>();
    const double g = a.number();
    READ(a);
    return floating(lengths::hazard(row.data, g));
}

FUNCTION(tokens_at) {
    Arguments a(given, count, 2);
    const auto row = a.array<double>();
    const double h = a.number();
    READ(a);
    return floating(lengths::tokens_at(row.data, h));
}

FUNCTION(conditional_quantile) {
    Arguments a(given, count, 3);
    const auto row = a.array<double>();
    const double g = a.number(), u = a.number();
    READ(a);
    return floating(lengths::conditional_quantile(row.data, g, u));
}

FUNCTION(stratum_of) {
    Arguments a(given, count, 2);
    const Int key = a.integer(), seed = a.integer();
    READ(a);
    return integer(lengths::stratum_of(key, seed));
}

FUNCTION(draw_levels) {
    Arguments a(given, count, 6);
    const auto row = a.array<double>();
    const Int g = a.integer(), key = a.integer(), seed = a.integer();
    const auto totals = a.table<Int>();
    const Int i = a.integer();
    READ(a);
    lengths::draw_levels(row.data, g, key, seed, totals, i);
    return nothing();
}

// --- length models -------------------------------------------------------------------------------

FUNCTION(standardise) {
    Arguments a(given, count, 4);
    const auto rows = a.table<float>();
    const auto mean = a.array<float>(), scale = a.array<float>();
    const double most = a.number();
    READ(a);
    models::standardise(rows, mean, scale, most);
    return nothing();
}

FUNCTION(sum_words) {
    Arguments a(given, count, 4);
    const auto words = a.table<float>();
    const auto numbers = a.array<Int>(), counts = a.array<Int>();
    const auto means = a.table<float>();
    READ(a);
    models::sum_words(words, numbers, counts, means);
    return nothing();
}

FUNCTION(forward) {
    Arguments a(given, count, 7);
    const auto rows = a.table<float>(), words = a.table<float>();
    const auto first = a.table<float>(), second = a.table<float>(), last = a.table<float>();
    const auto hidden = a.table<double>(), shares = a.table<double>();
    READ(a);
    models::forward(rows, words, first, second, last, hidden, shares);
    return nothing();
}

FUNCTION(quantiles) {
    Arguments a(given, count, 5);
    const auto probabilities = a.table<double>();
    const auto levels = a.array<double>(), edges = a.array<double>();
    const double tail_mean = a.number();
    const auto found = a.table<double>();
    READ(a);
    models::quantiles(probabilities, levels, edges, tail_mean, found);
    return nothing();
}

FUNCTION(means) {
    Arguments a(given, count, 5);
    const auto probabilities = a.table<double>();
    const auto limits = a.array<double>(), edges = a.array<double>();
    const double tail_mean = a.number();
    const auto found = a.array<double>();
    READ(a);
    models::means(probabilities, limits, edges, tail_mean, found);
    return nothing();
}

FUNCTION(differences) {
    Arguments a(given, count, 1);
    const auto below = a.table<double>();
    READ(a);
    models::differences(below);
    return nothing();
}

FUNCTION(experience) {
    Arguments a(given, count, 5);
    const auto prior = a.table<double>();
    const auto reached = a.array<double>(), passed = a.array<double>();
    const double worth = a.number();
    const auto below = a.table<double>();
    READ(a);
    models::experience(prior, reached, passed, worth, below);
    return nothing();
}

FUNCTION(recalibrate) {
    Arguments a(given, count, 3);
    const auto below = a.array<double>(), levels = a.array<double>();
    const auto corrected = a.array<double>();
    READ(a);
    models::recalibrate(below, levels, corrected);
    return nothing();
}

FUNCTION(regress) {
    Arguments a(given, count, 9);
    const auto probabilities = a.table<double>(), inputs = a.table<double>();
    const auto weights = a.array<double>();
    const auto covariance = a.table<double>();
    const double square = a.number();
    const auto centre_logs = a.array<double>(), upper_logs = a.array<double>();
    const double scale = a.number();
    const auto found = a.table<double>();
    READ(a);
    models::regress(probabilities, inputs, weights, covariance, square, centre_logs, upper_logs,
                    scale, found);
    return nothing();
}

FUNCTION(shift) {
    Arguments a(given, count, 10);
    const auto probabilities = a.table<double>(), below = a.table<double>();
    const double slope = a.number(), offset = a.number(), spread = a.number();
    const auto centre_logs = a.array<double>(), upper_logs = a.array<double>();
    const auto knots = a.array<double>(), tail = a.array<double>();
    const auto moved = a.table<double>();
    READ(a);
    models::shift(probabilities, below, slope, offset, spread, centre_logs, upper_logs, knots, tail,
                  moved);
    return nothing();
}

// --- regression ----------------------------------------------------------------------------------

static bool has_room(const Array<double>& theta) {
    if (theta.size <= regression::MOST_PARAMETERS) return true;
    PyErr_Format(PyExc_ValueError, "at most %d parameters", int(regression::MOST_PARAMETERS));
    return false;
}

FUNCTION(update) {
    Arguments a(given, count, 5);
    const auto theta = a.array<double>();
    const auto p = a.table<double>();
    const auto x = a.array<double>();
    const double error = a.number(), forgetting = a.number();
    READ(a);
    if (!has_room(theta)) return nullptr;
    regression::update(theta, p, x, error, forgetting);
    return nothing();
}

FUNCTION(widen) {
    Arguments a(given, count, 4);
    const auto theta = a.array<double>();
    const auto p = a.table<double>();
    const double variance = a.number();
    const auto shares = a.array<double>();
    READ(a);
    regression::widen(theta, p, variance, shares);
    return nothing();
}

FUNCTION(non_negative) {
    Arguments a(given, count, 2);
    const auto theta = a.array<double>();
    const auto p = a.table<double>();
    READ(a);
    if (!has_room(theta)) return nullptr;
    regression::non_negative(theta, p);
    return nothing();
}

// --- the module ----------------------------------------------------------------------------------

// Describe one kind of row: its size, and each field's name, offset, kind and dimensions.
template <class Row> static bool describe(PyObject* layouts) {
    using Kind = Described<Row>;
    PyObject* fields = PyList_New(0);
    bool ok = fields != nullptr;
    for (auto& field : Kind::rows) {
        const auto [first, second] = field.dimensions;
        const char* format = second ? "(sns(nn))" : first ? "(sns(n))" : "(sns())";
        PyObject* each = ok ? Py_BuildValue(format, field.name, Py_ssize_t(field.offset), field.kind,
                                            Py_ssize_t(first), Py_ssize_t(second))
                            : nullptr;
        ok = each != nullptr && PyList_Append(fields, each) == 0;
        Py_XDECREF(each);
    }
    PyObject* row = ok ? Py_BuildValue("(nO)", Py_ssize_t(sizeof(Row)), fields) : nullptr;
    ok = row != nullptr && PyDict_SetItemString(layouts, Kind::name, row) == 0;
    Py_XDECREF(row);
    Py_XDECREF(fields);
    return ok;
}

template <class... Rows> static PyObject* describe_all() {
    PyObject* layouts = PyDict_New();
    if (layouts == nullptr || (describe<Rows>(layouts) && ...)) return layouts;
    Py_DECREF(layouts);
    return nullptr;
}

#define METHOD(name) {#name, (PyCFunction)(void*)name, METH_FASTCALL, nullptr}

static PyMethodDef METHODS[] = {
    METHOD(advance), METHOD(run_steps), METHOD(count_free), METHOD(enqueue),
    METHOD(abort_sequence), METHOD(check), METHOD(limited), METHOD(drafted_tokens),
    METHOD(accepted_tokens), METHOD(step), METHOD(run), METHOD(publish_all), METHOD(fill_column),
    METHOD(untrue_requests), METHOD(untrue_arrivals), METHOD(are_certain), METHOD(forecast),
    METHOD(cost), METHOD(follow_others), METHOD(restore), METHOD(step_s), METHOD(shape_s),
    METHOD(own_s), METHOD(ranks_s), METHOD(decode_run_s), METHOD(locate), METHOD(dense_s),
    METHOD(curve_s), METHOD(grid2_s), METHOD(grid4_s), METHOD(fit), METHOD(slack_s),
    METHOD(limit_s), METHOD(arrival_s), METHOD(worth), METHOD(set_levels), METHOD(hazard),
    METHOD(tokens_at), METHOD(conditional_quantile), METHOD(stratum_of), METHOD(draw_levels),
    METHOD(standardise), METHOD(sum_words), METHOD(forward), METHOD(quantiles), METHOD(means),
    METHOD(differences), METHOD(experience), METHOD(recalibrate), METHOD(regress), METHOD(shift),
    METHOD(update), METHOD(widen), METHOD(non_negative), {nullptr, nullptr, 0, nullptr},
};

static PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "compiled", nullptr, -1, METHODS, nullptr, nullptr, nullptr, nullptr,
};

// Add `value` to the module; steals the reference.
static bool add(PyObject* module, const char* name, PyObject* value) {
    const bool ok = value != nullptr && PyModule_AddObjectRef(module, name, value) == 0;
    Py_XDECREF(value);
    return ok;
}

static PyObject* make_module() {
    PyObject* module = PyModule_Create(&MODULE);
    if (module == nullptr) return nullptr;
    IMPOSSIBLE_STATE = PyErr_NewExceptionWithDoc(
        "foretell.kernel.compiled.ImpossibleState",
        "The reported state is impossible for an engine; the message names the broken invariant.",
        nullptr, nullptr);
    PyObject* layouts =
        describe_all<Sequence, Engine, Block, Counts, Entry, Place, Input, Clock, SteadySums,
                     Records, Tally, LiveRecord, Belief, Mark, Request, Snapshot, Arrival, Question,
                     Kept, At, PlacedModel, Placed>();
    Py_XINCREF(IMPOSSIBLE_STATE);
    if (add(module, "ImpossibleState", IMPOSSIBLE_STATE) && add(module, "LAYOUTS", layouts) &&
        add(module, "STRETCH", floating(offline::STRETCH))) {
        return module;
    }
    Py_DECREF(module);
    return nullptr;
}

}  // namespace foretell::python

PyMODINIT_FUNC PyInit_compiled() { return foretell::python::make_module(); }
