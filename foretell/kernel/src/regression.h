// Recursive least squares: an estimate `theta` and its covariance `p`, in place.

#pragma once

#include "base.h"

namespace foretell::regression {

constexpr Int MOST_PARAMETERS = 32;

// Learn that the prediction of `theta` at `x` was off by `error`; forget only in direction `x`.
//
// With r = x'Px: theta += Px error / (1 + r), and P -= Px x'P / (1/e + r) where
// e = l - (1 - l) / r discounts old knowledge by l = `forgetting` (Kulhavy 1987; Bittanti, Bolzern,
// Campi 1990). `p` and `error` are in units of the noise of one observation.
COMPILED void update(const Array<double>& theta, const Table<double>& p, const Array<double>& x,
                     double error, double forgetting) {
    const Int size = theta.size;
    double px[MOST_PARAMETERS], r = 0.0;
    for (Int i = 0; i < size; i++) {
        px[i] = 0.0;
        for (Int j = 0; j < size; j++) px[i] += p.at(i, j) * x[j];
        r += px[i] * x[i];
    }
    if (r <= 0.0) return;
    const double e = forgetting - (1.0 - forgetting) / r;
    const double shrink = e / (1.0 + e * r);
    for (Int i = 0; i < size; i++) {
        theta[i] += error / (1.0 + r) * px[i];
        for (Int j = i; j < size; j++) {
            p.at(i, j) -= shrink * px[i] * px[j];
            p.at(j, i) = p.at(i, j);
        }
    }
}

// Add the uncertainty of an estimate that is off by a common factor, and in each parameter.
//
// `shares` is the deviation of each parameter beyond its own size.
COMPILED void widen(const Array<double>& theta, const Table<double>& p, double variance,
                    const Array<double>& shares) {
    for (Int i = 0; i < theta.size; i++) {
        const double mine = max(0.0, theta[i]);
        for (Int j = 0; j < theta.size; j++) {
            p.at(i, j) += variance * mine * max(0.0, theta[j]);
        }
        p.at(i, i) += variance * (mine * mine + shares[i] * shares[i]);
    }
}

// Constrain the estimate so that no parameter is negative; `p` is overwritten.
//
// Only setting a negative parameter to zero would spoil predictions, because others compensate for
// it. So the estimate is conditioned on it being zero (a noiseless observation), worst one first.
COMPILED void non_negative(const Array<double>& theta, const Table<double>& p) {
    const Int size = theta.size;
    bool free[MOST_PARAMETERS];
    double column[MOST_PARAMETERS], row[MOST_PARAMETERS];
    for (Int i = 0; i < size; i++) free[i] = true;
    for (Int round = 0; round < size; round++) {
        Int worst = -1;
        for (Int i = 0; i < size; i++) {
            if (free[i] && theta[i] < 0.0 && (worst < 0 || theta[i] < theta[worst])) worst = i;
        }
        if (worst < 0) break;
        free[worst] = false;
        if (p.at(worst, worst) > 0.0) {
            for (Int i = 0; i < size; i++) {
                column[i] = p.at(i, worst) / p.at(worst, worst);
                row[i] = p.at(worst, i);
            }
            for (Int i = 0; i < size; i++) {
                if (!free[i]) continue;
                theta[i] -= column[i] * theta[worst];
                for (Int j = 0; j < size; j++) p.at(i, j) -= column[i] * row[j];
            }
        }
        theta[worst] = 0.0;
    }
    for (Int i = 0; i < size; i++) theta[i] = max(theta[i], 0.0);
}

}  // namespace foretell::regression
