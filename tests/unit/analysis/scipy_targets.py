"""Computes times to a target and their comparison with a reference again, from the formulas of the section "Time to target" of
docs/users/reading-a-curve-statistics.md."""

import collections

import numpy as np
from scipy import stats
from scipy_check import check, same, student

Point = collections.namedtuple("Point", "batch mean deviation n limit")


def without_extremes(values):
    """Returns the values without the smallest and the largest. None is a repeat that missed the target and counts as the largest.
    The result is empty if two repeats missed it."""
    if len(values) < 3 or values.count(None) > 1:
        return []
    return sorted(np.inf if value is None else value for value in values)[1:-1]


def limit(mean, deviation, n, k):
    """Returns the least mean of k values that a t test does not find to be below that of n values."""
    if deviation == 0:
        return mean
    least = mean - student(0.95, n + k - 2) * deviation * np.sqrt(1 / n + 1 / k)
    # SciPy has a test of two samples with these means and deviations. Its p value is that of two sides.
    test = stats.ttest_ind_from_stats(least, deviation, k, mean, deviation, n)
    check("p value of the limit", test.pvalue / 2, 0.05)
    return max(least, 0)


def interpolate(low, high, batch, k):
    mean, deviation = (np.interp(batch, [low.batch, high.batch], [low[i], high[i]]) for i in (1, 2))
    n = min(low.n, high.n)
    return Point(batch, mean, deviation, n, limit(mean, deviation, n, k))


def points_of(reference, k):
    """Returns the points with at least 4 repeats, by batch."""
    points = []
    for batch, samples in sorted(reference):
        kept = without_extremes(samples)
        if len(kept) >= 2:
            mean, deviation = np.mean(kept), np.std(kept) if np.ptp(kept) else 0
            points.append(Point(batch, mean, deviation, len(kept), limit(mean, deviation, len(kept), k)))
    return points


def prune(points, k):
    """Removes the points that make the reference slower."""
    fastest = np.argmin([point.limit for point in points])
    kept, rest = [points[fastest]], points[fastest + 1 :]
    while rest:
        point, *rest = rest
        # As in the RCP checker, a point is compared once, with its neighbours that are left then.
        if not rest or point.limit <= interpolate(kept[-1], rest[0], point.batch, k).limit:
            kept.append(point)
    return kept


def compare(reference, batch, k, seconds, samples):
    """Returns the name of the case, and the figures of the comparison with the reference."""
    points = points_of(reference, k)
    if not points:
        return "no reference", {}
    kept = prune(points, k)
    if batch > kept[-1].batch:
        return "larger batch", {}
    if batch < points[0].batch and samples < kept[0].limit:
        return "smaller batch", {}
    name = "point"
    if batch <= kept[0].batch:
        point = kept[0]
    else:
        above = next(i for i, point in enumerate(kept) if point.batch >= batch)
        point = kept[above]
        if point.batch != batch:
            point, name = interpolate(kept[above - 1], point, batch, k), "interpolation"
    figures = {"reference_samples": point.mean, "reference_limit": point.limit}
    if samples < point.limit:
        return name + " above the samples", figures
    figures["normalised_seconds"] = seconds * point.mean / samples if samples < point.mean else seconds
    name += (" within the noise" if samples < point.mean else " below the samples") + (", pruned" if len(kept) < len(points) else "")
    return name, figures


def time_of(repeats):
    """Returns the figures of one point."""
    reached = [repeat for repeat in repeats if repeat[0] is not None]
    figures = {"n": len(repeats), "reached": len(reached)}
    for name, values in (("seconds", [repeat[0] for repeat in repeats]), ("samples", [repeat[1] for repeat in repeats])):
        kept = without_extremes(values)
        if kept and (name == "seconds" or all(samples is not None for _, samples in reached)):
            figures[name] = np.mean(kept)
    return figures


def check_time(actual, expected):
    same("figures of a time to target", sorted(actual), sorted(expected))
    for name, value in expected.items():
        check(name, actual[name], value)


def check_targets(targets):
    cases = collections.Counter()
    for target in targets:
        base, point = time_of(target["base"]["repeats"]), time_of(target["point"]["repeats"])
        check_time(target["base"]["time"], base)
        if "samples" in point:
            if "samples" in base:
                point["samples_ratio"] = point["samples"] / base["samples"]
            name, figures = compare(target["reference"], target["batch"], point["n"] - 2, point["seconds"], point["samples"])
            point.update(figures)
            cases[name] += 1
        check_time(target["point"]["time"], point)
    compared = [f"{kind} {noise}" for kind in ("point", "interpolation")
                for noise in ("above the samples", "within the noise", "within the noise, pruned", "below the samples",
                              "below the samples, pruned")]
    same("cases of the reference", sorted(cases), sorted(compared + ["no reference", "larger batch", "smaller batch"]))
