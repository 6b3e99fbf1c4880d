"""Computes the figures of analysis_figures again with NumPy and SciPy, from the formulas of
docs/users/reading-a-curve-statistics.md, noise.md and predictions.md.

usage: scipy_test.py ANALYSIS_FIGURES
"""

import json
import subprocess
import sys

try:
    import numpy as np
    from scipy import optimize, stats
except ImportError as error:
    print(f"skipped: {error}; install the Debian packages python3-numpy and python3-scipy")
    sys.exit(77)

import scipy_check  # noqa: E402
from scipy_advice import check_advice  # noqa: E402
from scipy_check import check, check_estimate, check_spread, mean_interval, same, student  # noqa: E402
from scipy_model import LEAST_RESAMPLED, MOST_RESAMPLED, Model, in_common  # noqa: E402
from scipy_predictions import check_predictions, solve, solve_possible  # noqa: E402
from scipy_targets import check_targets  # noqa: E402


def without(cells, blocks):
    rest = []
    for cell in cells:
        keep = [i for i, block in enumerate(cell["block"]) if block not in blocks]
        rest.append({key: [cell[key][i] for i in keep] if cell[key] else [] for key in ("block", "value", "time")})
    return rest


def drifts(cells, blocks):
    """Returns whether the drift is part of the model."""
    if blocks < 3 or not all(cell["time"] for cell in cells):
        return False
    plain = Model(cells, blocks, False)
    if plain.df < 3:
        return False
    # The variation of the times that cells and blocks leave unexplained, relative to the variation within blocks.
    times = [{"block": c["block"], "value": np.exp(np.array(c["time"]) / 1e4), "time": c["time"]} for c in cells]
    left = Model(times, blocks, False).residual * 1e4
    within = 0.0
    for block in range(blocks):
        of_block = np.array([t for c in cells for b, t in zip(c["block"], c["time"]) if b == block])
        within += float(((of_block - of_block.mean()) ** 2).sum()) if len(of_block) else 0.0
    return float(left @ left) > 0.1 * within


def left_out_fits(law, study, p, smallest):
    """The parameters without each block, or without each of 64 groups of more blocks."""
    groups = np.arange(study["blocks"]) * min(MOST_RESAMPLED, study["blocks"]) // study["blocks"]
    for group in sorted(set(groups)):
        rest = without(study["cells"], np.flatnonzero(groups == group))
        if smallest == study["blocks"] > MOST_RESAMPLED:
            means = np.array([np.mean(cell["value"]) for cell in rest])
            s = means / means[0]
        else:
            jackknife = Model(rest, study["blocks"], drifts(rest, study["blocks"]))
            s = np.exp([0.0] + [jackknife.compare(i, 0)[0] for i in range(1, len(p))])
        yield solve(law, p, s, p[0])


def check_fit(fit, study, model, speedups, logs):
    law, p = fit["law"], np.array(study["ranks"])
    names = ["serial_fraction"] if law == "amdahl" else ["contention", "coherency"]
    top = 1 if law == "amdahl" else 1e9
    estimate, shown = solve(law, p, speedups, p[0]), solve_possible(law, p, speedups, p[0])
    smallest = min(len(cell["value"]) for cell in study["cells"])
    complete = all(cell["block"] == study["cells"][0]["block"] for cell in study["cells"])
    drawn = complete and LEAST_RESAMPLED <= smallest <= MOST_RESAMPLED
    left_out = [] if drawn else list(left_out_fits(law, study, p, smallest))
    n = len(left_out)
    for k, name in enumerate(names):
        mean, low, high = fit["parameters"][name]
        check(name, mean, shown[k])
        if smallest < 2 or drawn:
            continue
        half = student(0.975, min(smallest, n) - 1) * np.std([v[k] for v in left_out], ddof=1) * (n - 1) / np.sqrt(n)
        terms = abs(estimate[k]) + half
        check(name + " low", low, min(np.clip(estimate[k] - half, 0, top), mean), terms)
        check(name + " high", high, max(np.clip(estimate[k] + half, 0, top), mean), terms)
    # Lack of fit: generalised least squares of the deviations on the level and the derivatives of the law by the parameters that
    # are not at an end of their range. The ranks of the base case change only the level.
    a = np.array(list(shown) + [0.0] * (2 - len(shown)))
    d = 1 + a[0] * (p - 1) + a[1] * p * (p - 1)
    weight = 1 / np.sqrt([model.variance_of(i) / len(study["cells"][i]["value"]) for i in range(len(p))])
    derivatives = [-weight * (p - 1) / d, -weight * p * (p - 1) / d]
    x = np.array([weight] + [derivatives[k] for k in range(len(names)) if 0 < shown[k] < top]).T
    deviation = weight * (logs - np.log(p / d))
    rest = deviation - x @ np.linalg.lstsq(x, deviation, rcond=None)[0]
    df = len(p) - x.shape[1]
    f = float(rest @ rest) / df
    check("F", fit["f"], f)
    check("df", fit["deviation_df"], df)
    check("p", fit["p"], stats.f.sf(f, df, model.nu))


def check_speedup(difference, a, b, model, log_ratio, error):
    """Checks the ratio of two cells. Returns it."""
    speedup = difference["speedup"]
    check("median of ratios", difference["median"], np.median(a / b))
    check("deviation of ratios", difference["stddev"], np.std(a / b, ddof=1))
    n = len(a)
    if n < LEAST_RESAMPLED:
        half, ratio = student(0.975, model.nu) * error, np.exp(log_ratio)
    else:
        ratio = a.mean() / b.mean()
        change = (a / a.mean() - b / b.mean()) / n
        half = student(0.975, n - 1) * np.sqrt((change**2).sum() * n / (n - 1))
    check("speedup", speedup[0], ratio)
    if not LEAST_RESAMPLED <= n <= MOST_RESAMPLED:  # otherwise it is a percentile of random draws
        check_estimate("speedup", speedup, ratio * np.exp([0, -half, half]))
    return ratio


def check_study(study):
    cells = study["cells"]
    for cell in cells:
        n, value = len(cell["value"]), np.array(cell["value"])
        check("mean", cell["mean"], value.mean())
        check("median", cell["median"], np.median(value))
        if n < 2:
            continue
        check("deviation", cell["stddev"], value.std(ddof=1))
        half = student(0.975, n - 1) * value.std(ddof=1) / np.sqrt(n)
        check("low", cell["low"], value.mean() - half)
        check("high", cell["high"], value.mean() + half)
    drift = drifts(cells, study["blocks"])
    if drift != study["model"]["drift"]:
        sys.exit(f"drift: scalelab has {study['model']['drift']}, SciPy {drift}")
    model = Model(cells, study["blocks"], drift)
    check("df", study["model"]["df"], model.df)
    check("s^2", study["model"]["variance"], model.variance)
    logs, speedups = [0.0], [1.0]
    for i, difference in enumerate(study["differences"], start=1):
        log_ratio, error = model.compare(i, 0)
        logs.append(log_ratio)
        check("ratio", difference["ratio"], np.exp(log_ratio))
        check("error", difference["error"], error)
        check("nu", difference["df"], model.nu)
        speedups.append(check_speedup(difference, *in_common(cells[i], cells[0]), model, log_ratio, error))
    for fit in study.get("fits", []):
        check_fit(fit, study, model, np.array(speedups), np.array(logs))


def check_widening(figures):
    """The factor by which percentile intervals of n blocks are widened."""
    for n, factor in figures:
        check("widening", factor, student(0.975, n - 1) * np.sqrt(n / (n - 1)) / stats.norm.ppf(0.975))


def check_outliers(figures):
    cells, blocks = figures["cells"], figures["blocks"]
    logs = np.full((len(cells), blocks), np.nan)
    for c, cell in enumerate(cells):
        logs[c, cell["block"]] = np.log(cell["value"])
    for axis in (1, 0, 1):
        logs -= np.nanmedian(logs, axis=axis, keepdims=True)
    parameters = len(cells) + blocks - 1
    sizes = np.sort(np.abs(logs[~np.isnan(logs)]))[parameters:]
    limit = 5 * 1.4826 * sizes[len(sizes) // 2]
    for c, cell in enumerate(cells):
        expected = [(place, logs[c, block]) for place, block in enumerate(cell["block"]) if abs(logs[c, block]) > limit]
        check("number of outliers", len(cell["outliers"]), len(expected))
        for outlier, (place, residual) in zip(cell["outliers"], expected):
            check("place of an outlier", outlier[0], place)
            check("residual of an outlier", outlier[1], residual)


def fieller(above, below):
    """The ratio of the means with the ratios r for which a t test does not reject E[above] = r E[below]."""
    ratio = above.mean() / below.mean()

    def outside(r):
        return stats.ttest_1samp(above - r * below, 0).pvalue - 0.05

    def end(far):
        return optimize.brentq(outside, *sorted((ratio, far)), xtol=1e-300, rtol=1e-14)

    step = abs(ratio)
    while outside(ratio - step) > 0 or outside(ratio + step) > 0:
        step *= 2
    return np.array([ratio, end(ratio - step), end(ratio + step)])


def check_communication(figures):
    steps = {name: dict(zip(sample["block"], sample["value"])) for name, sample in figures["steps"].items()}

    def minus_none(name, blocks):
        return np.array([steps[name][block] - steps["none"][block] for block in sorted(blocks)])

    common = {name: steps[name].keys() & steps["none"].keys() for name in ("cell", "serial")}
    for what, name, spread in (("exposed", "cell", 0), ("total", "serial", 1)):
        of_blocks = minus_none(name, common[name])
        check_spread(what, figures["spreads"][spread], of_blocks)
        half = student(0.975, len(of_blocks) - 1) * stats.sem(of_blocks)
        check_estimate(what, figures[what], of_blocks.mean() + half * np.array([0, -1, 1]))
    of_all = common["cell"] & common["serial"]
    check_spread("hidden", figures["spreads"][2], 1 - minus_none("cell", of_all) / minus_none("serial", of_all))
    ratio, low, high = fieller(minus_none("cell", of_all), minus_none("serial", of_all))
    check_estimate("hidden", figures["hidden"], (1 - ratio, 1 - high, 1 - low))


def check_concurrency(figures):
    begins, ends = np.array([(begin, end or np.inf) for begin, end in figures["attempts"]]).T
    means, counts = [], []
    for begin, end in figures["attempts"][:figures["repeats"]]:
        common = np.minimum(ends, end) - np.maximum(begins, begin)
        means.append(common[common > 0].sum() / (end - begin))
        # The number of attempts increases only where one begins.
        counts += [((begins <= t) & (t < ends)).sum() for t in begins if begin <= t < end]
    check("concurrent attempts", figures["mean"], np.mean(means))
    same("most concurrent attempts", figures["most"], max(counts))


def check_bands(figures):
    for values, floor, median, width in figures:
        check("median of a band", median, np.median(values))
        check("width of a band", width, max(5 * 1.4826 * stats.median_abs_deviation(values), floor))


def geometric(values, most=np.inf):
    """The geometric mean with Student's t interval of the logarithms."""
    logs = np.log(values)
    half = student(0.975, len(logs) - 1) * stats.sem(logs)
    return np.exp(logs.mean()), np.exp(logs.mean() - half), min(np.exp(logs.mean() + half), most)


def slowest_unit(values, times=()):
    """Fits log(time) = unit + other groups + drift + noise by ordinary least squares. `values` has the number of the unit, the numbers
    of the other groups, and the logarithm of each value. Returns the effects relative to their mean, with Bonferroni intervals."""
    *groups, y = (np.array(column) for column in zip(*values))
    x = np.hstack([group[:, None] == np.arange(group.max() + 1) for group in groups]).astype(float)
    if len(times):
        x = np.column_stack([x, (times - np.min(times)) / np.ptp(times)])
    units = int(groups[0].max()) + 1
    solution, inverse = np.linalg.pinv(x, rcond=1e-10) @ y, np.linalg.pinv(x.T @ x, rcond=1e-10)
    contrasts = np.hstack([np.eye(units) - 1 / units, np.zeros((units, x.shape[1] - units))])
    effects = contrasts @ solution
    df = len(values) - np.linalg.matrix_rank(x)
    variances = ((y - x @ solution) ** 2).sum() / df * np.einsum("ui,ij,uj->u", contrasts, inverse, contrasts)
    halves = student(1 - 0.025 / units, df) * np.sqrt(variances)
    unit = max(range(units), key=lambda u: (effects[u] > halves[u], effects[u]))
    return unit, effects[unit], halves[unit]


def check_nodes(figures):
    node, effect, half = slowest_unit([(*labels, -np.log(throughput)) for *labels, throughput in figures["runs"]], figures["times"])
    same("slowest node", figures["node"], node)
    check_estimate("excess of a node", figures["excess"], np.expm1([effect, effect - half, effect + half]))


def check_measured_communication(figures):
    """The seconds in which communication is in progress, and the share of them that is hidden."""
    measured = [(np.mean(run["exposed"]), run["communication"]) for run in figures["point"] if run["communication"]]
    same("measured communication", figures["measured_communication"] is not None, bool(measured))
    if measured:
        exposed, total = np.array(measured).T
        check_estimate("communication", figures["measured_communication"]["seconds"], mean_interval(total, least=0))
        hidden = np.clip(1 - exposed / total, 0, 1)
        check_estimate("hidden communication", figures["measured_communication"]["hidden"], mean_interval(hidden, least=0, most=1))
        for what, spread, values in zip(("seconds", "hidden"), figures["measured_communication"]["spreads"], (total, hidden)):
            check_spread("communication " + what, spread, values)


def check_factors(figures):
    keys = ("step", "exposed", "data")
    base, point = ({key: np.array([run[key] for run in figures[name]]) for key in keys} for name in ("base", "point"))
    for times in (base, point):
        times["work"] = times["step"] - times["exposed"] - times["data"]
        times["busy"] = (times["work"] + times["data"]).max(axis=1)
    work, step = point["work"], point["step"].max(axis=1)
    balance, data, communication = work.mean(axis=1) / work.max(axis=1), work.max(axis=1) / point["busy"], point["busy"] / step
    batch = {name: figures["samples"][name] / len(figures[name][0]["step"]) for name in ("base", "point")}  # of a rank
    # The computation of a rank of the point at the speed of the base case.
    at_base_speed = base["work"].mean(axis=1) * batch["point"] / batch["base"]
    computation = at_base_speed / work.mean(axis=1)
    check_estimate("load balance", figures["load_balance"], geometric(balance, 1))
    check_estimate("data", figures["data"], geometric(data, 1))
    check_estimate("communication", figures["communication"], geometric(communication, 1))
    check_estimate("computation", figures["computation"], geometric(computation))
    check_estimate("product", figures["product"], geometric(balance * data * communication * computation))
    each = (balance, data, communication, computation, balance * data * communication * computation)
    for what, spread, values in zip(("balance", "data", "communication", "computation", "product"), figures["spreads"], each):
        check_spread(what, spread, values)
    ideal = min(at_base_speed.mean(), work.mean())
    parts = np.array([ideal, work.mean(), work.max(axis=1).mean(), point["busy"].mean(), step.mean()])
    for name, actual, expected in zip(("ideal", "slower", "imbalance", "data", "communication"), figures["shares"],
                                      np.diff(parts, prepend=0) / step.mean()):
        check("share " + name, actual, expected)
    check_measured_communication(figures)
    unit, effect, half = slowest_unit([(rank, repeat, np.log(w)) for repeat, run in enumerate(work) for rank, w in enumerate(run)])
    check("slowest rank", figures["slowest_rank"], unit)
    check_estimate("slowest", figures["slowest"], np.expm1([effect, effect - half, effect + half]))


def check_noise(figures):
    rank, mean = np.array(figures["norms"]).T
    square, trace = (256 * mean - 64 * rank) / (256 - 64), (rank - mean) / (1 / 64 - 1 / 256)
    scales = fieller(trace, square)
    check_estimate("critical batch", figures["critical_batch"], scales)
    check_estimate("statistical efficiency", figures["statistical_efficiency"], 1 / (1 + 256 / scales))
    check_estimate("goodput", figures["goodput"], np.array([1000, 950, 1050]) / (1 + 256 / scales))
    median = np.median(trace / square)
    for what, actual, expected in zip(("critical batch", "efficiency", "goodput"), figures["medians"],
                                      (median, 1 / (1 + 256 / median), 990 / (1 + 256 / median))):
        check("median of " + what, actual, expected)


def check_pair(pair, log_ratio, error, df, critical_is_95, equivalent=0.1):
    """critical_is_95: returns a probability that is 0.95 for the critical value, which is given in standard errors."""
    mean, low, high = np.log1p(pair["effect"])
    check("effect", mean, log_ratio)
    check("end", high - mean, mean - low)
    # A relative error of the tail is at least as large as that of the critical value.
    check("critical value", 1 - critical_is_95((high - mean) / error), 0.05)
    # The two one-sided tests of Schuirmann.
    limit = np.log1p(equivalent)
    p = max(stats.t.cdf((log_ratio - limit) / error, df), stats.t.sf((log_ratio + limit) / error, df))
    check("equivalence", pair["equivalence_p"], p)


def check_group(figures):
    """Tukey's intervals of all pairs of cells."""
    cells = figures["cells"]
    model = Model(cells, figures["blocks"], False)
    pairs = [(a, b) for a in range(len(cells)) for b in range(a + 1, len(cells))]
    check("pairs", len(figures["pairs"]), len(pairs))
    for (a, b), pair in zip(pairs, figures["pairs"]):
        log_ratio, error = model.compare(a, b)
        of_a, of_b = in_common(cells[a], cells[b])
        check("median of the effect", pair["median"], np.median(of_a / of_b) - 1, 1)
        check_pair(pair, log_ratio, error, model.nu,
                   lambda t: stats.studentized_range.cdf(t * np.sqrt(2), len(cells), model.nu))
    t = student(0.975, model.nu) + student(0.8, model.nu)
    repeats = np.median([len(cell["value"]) for cell in cells])
    check("noise floor", figures["noise_floor"], np.expm1(t * np.sqrt(2 * model.variance / repeats)))


def check_days(figures):
    """Each study is a block. Its value of a cell is the geometric mean of the repeats."""
    cells = [{"block": [day for day, values in enumerate(days) if values],
              "value": [stats.gmean(values) for values in days if values],
              "time": []} for days in figures["engines"]]
    check_group({**figures, "cells": cells})


def check_comparisons(figures):
    check_group(figures)
    logs = [np.log(values) for values in figures["studies"]]

    def welch(a, b):
        of_a, of_b = stats.sem(logs[a]) ** 2, stats.sem(logs[b]) ** 2
        df = (of_a + of_b) ** 2 / (of_a**2 / (len(logs[a]) - 1) + of_b**2 / (len(logs[b]) - 1))
        return logs[a].mean() - logs[b].mean(), np.sqrt(of_a + of_b), df

    for (a, b), pair in zip([(0, 1), (0, 1), (0, 2), (1, 2)], [figures["two_studies"], *figures["three_studies"]]):
        check("median of studies", pair["median"], np.expm1(np.median(logs[a]) - np.median(logs[b])), 1)
    log_ratio, error, df = welch(0, 1)
    check_pair(figures["two_studies"], log_ratio, error, df, lambda t: stats.t.cdf(t, df) - stats.t.cdf(-t, df))
    for end in np.log1p(figures["two_studies"]["effect"][1:]):
        # SciPy has its own test of Welch: at the ends of the interval its p value is 5%.
        check("Welch", stats.ttest_ind(logs[0] - end, logs[1], equal_var=False).pvalue, 0.05)
    for (a, b), pair in zip([(0, 1), (0, 2), (1, 2)], figures["three_studies"]):
        log_ratio, error, df = welch(a, b)
        check_pair(pair, log_ratio, error, df,
                   lambda t, whole=int(df): stats.studentized_range.cdf(t * np.sqrt(2), 3, whole))


def check_adaptive(figures):
    """The confidence of a study whose repeats depend on the results, and the half width that its rule examines."""
    first = max(2, figures["min"])
    confidence = 0.965
    if len(figures["cells"]) <= 2 and figures["blocks"] > first:
        confidence = {2: 0.98, 3: 0.975}.get(first, 0.97)
    same("confidence", figures["confidence"], confidence)
    t = student(0.5 + confidence / 2, figures["blocks"] - 1)
    base, *others = (np.array(values) for values in figures["cells"])
    if others:
        half = max(t * stats.sem(np.log(values / base)) for values in others)
        check("half width", figures["half_width"], np.expm1(half))
    else:
        low, high = base.mean() + t * stats.sem(base) * np.array([-1, 1])
        if low > 0:
            check("half width of a mean", figures["half_width"], np.sqrt(high / low) - 1)
        else:
            same("half width of a mean that may be 0", figures["half_width"], None)


def main():
    figures = json.loads(subprocess.run(sys.argv[1:2], check=True, capture_output=True, timeout=60).stdout)
    distributions = figures["distributions"]
    for p, df, quantile in distributions["t"]:
        check("Student", quantile, student(p, df))
    for value, numerator, denominator, tail in distributions["f"]:
        check("Fisher", tail, stats.f.sf(value, numerator, denominator))
    for groups, df, quantile in distributions["range"]:
        check("studentised range", 1 - stats.studentized_range.cdf(quantile, groups, df), 0.05)
    check_widening(figures["widening"])
    for study in figures["studies"]:
        check_study(study)
    for outliers in figures["outliers"]:
        check_outliers(outliers)
    for communication in figures["communication"]:
        check_communication(communication)
    check_concurrency(figures["concurrency"])
    check_bands(figures["bands"])
    for factors in figures["factors"]:
        check_factors(factors)
    for what, actual, expected in zip(("unit", "effect", "half"), (figures["units"][key] for key in ("unit", "effect", "half")),
                                      slowest_unit(figures["units"]["values"])):
        check("units: " + what, actual, expected)
    for nodes in figures["nodes"]:
        check_nodes(nodes)
    check_noise(figures["noise"])
    for comparisons in figures["comparisons"]:
        check_comparisons(comparisons)
    check_days(figures["days"])
    for adaptive in figures["adaptive"]:
        check_adaptive(adaptive)
    check_advice(figures["advice"])
    check_targets(figures["targets"])
    check_predictions(figures["predictions"])
    print(f"{scipy_check.checked} figures agree with SciPy")


if __name__ == "__main__":
    main()
