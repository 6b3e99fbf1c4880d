"""Compares figures of scalelab with those of NumPy and SciPy."""

import sys

import numpy as np
from scipy import stats

TOLERANCE = 1e-9  # relative
checked = 0


def check(what, actual, expected, terms=0.0):
    """Fails unless the two numbers agree. If 0 is expected, the figure must be exactly 0.

    terms: for a sum in which terms may cancel, the sum of their absolute values. It limits the error of the sum.
    """
    global checked
    checked += 1
    if not abs(actual - expected) <= TOLERANCE * (max(abs(expected), terms) if expected else 0):
        sys.exit(f"{what}: scalelab has {actual!r}, SciPy {expected!r}")


def same(what, actual, expected):
    """Fails unless the two values, which are not the result of a computation with rounding errors, are equal."""
    global checked
    checked += 1
    if actual != expected:
        sys.exit(f"{what}: scalelab has {actual!r}, SciPy {expected!r}")


def check_estimate(what, estimate, expected):
    """Checks a mean with the ends of its interval, or a mean that has no interval."""
    same("numbers of " + what, len(estimate), len(expected))
    for name, actual, value in zip(("", " low", " high"), estimate, expected):
        check(what + name, actual, value)


def check_spread(what, spread, values):
    """Checks the median and the standard deviation of values; one value has no deviation."""
    same("numbers of the spread of " + what, len(spread), min(len(values), 2))
    check("median of " + what, spread[0], np.median(values))
    if len(values) > 1:
        check("deviation of " + what, spread[1], np.std(values, ddof=1))


def student(p, df):
    """Returns a quantile of Student's t distribution. SciPy's quantiles have errors of up to 5e-10 in the probability. Two steps of
    Newton's method with SciPy's distribution function, which is accurate, remove them."""
    t = stats.t.ppf(p, df)
    for _ in range(2):
        t -= (stats.t.cdf(t, df) - p) / stats.t.pdf(t, df)
    return t


def mean_interval(values, confidence=0.95, least=-np.inf, most=np.inf):
    """Returns the mean with Student's t interval, cut to the possible range; without an interval if there is only one value."""
    values = np.array(values)
    if len(values) < 2:
        return values
    half = student(0.5 + confidence / 2, len(values) - 1) * stats.sem(values)
    return np.array([values.mean(), max(values.mean() - half, least), min(values.mean() + half, most)])
