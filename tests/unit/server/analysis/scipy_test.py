"""Computes the figures of analysis_figures again with NumPy and SciPy, from the formulas of
docs/users/reading-a-curve-statistics.md.

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

# Relative. Some checks below allow 1e-8 or 1e-7: differences of nearly equal numbers lose digits, and so do SciPy's quantiles.
TOLERANCE = 1e-9
checked = 0


def check(what, actual, expected, tolerance=TOLERANCE):
    """Fails unless the two numbers agree."""
    global checked
    checked += 1
    scale = max(abs(expected), 1e-3)
    if not abs(actual - expected) <= tolerance * scale:
        sys.exit(f"{what}: scalelab has {actual!r}, SciPy {expected!r}")


class Model:
    """Fits log(value) = cell + block + drift * time by ordinary least squares on the whole design matrix."""

    def __init__(self, cells, blocks, drift):
        self.cells = cells
        self.index = [(c, i) for c, cell in enumerate(cells) for i in range(len(cell["value"]))]
        y = np.array([np.log(cells[c]["value"][i]) for c, i in self.index])
        times = [t for cell in cells for t in cell["time"]]
        columns = len(cells) + blocks + (1 if drift else 0)
        x = np.zeros((len(y), columns))
        for row, (c, i) in enumerate(self.index):
            x[row, c] = 1
            x[row, len(cells) + cells[c]["block"][i]] = 1
            if drift:
                x[row, -1] = (cells[c]["time"][i] - min(times)) / (max(times) - min(times))
        rank = np.linalg.matrix_rank(x)
        self.solution = np.linalg.pinv(x) @ y
        self.covariance = np.linalg.pinv(x.T @ x)
        self.residual = y - x @ self.solution
        self.df = len(y) - rank
        self.variance = float(self.residual @ self.residual) / self.df if self.df else 0.0
        self.drift = drift
        repeated = sum(1 for cell in cells if len(cell["value"]) > 1)
        without_drift = self.df + (1 if drift else 0)
        self.nu = min(self.df, without_drift * repeated / (2 * (repeated - 1)))

    def residuals_of(self, c):
        return {self.cells[c]["block"][i]: r for (k, i), r in zip(self.index, self.residual) if k == c}

    def compare(self, a, b):
        contrast = np.zeros(len(self.solution))
        contrast[a], contrast[b] = 1, -1
        of_a, of_b = self.residuals_of(a), self.residuals_of(b)
        within = [of_a[block] - of_b[block] for block in of_a if block in of_b]
        own = np.var(within, ddof=1) if len(within) > 1 else 0
        if self.drift and len(within) > 1:
            own *= (len(within) - 1) / (len(within) - 1.5)
        leverage = contrast @ self.covariance @ contrast
        error = np.sqrt(max(2 * self.variance, own) * leverage / 2)
        return contrast @ self.solution, error

    def variance_of(self, c):
        residual = list(self.residuals_of(c).values())
        repeated = sum(1 for cell in self.cells if len(cell["value"]) > 1)
        left = (len(residual) - 1) * (repeated - 1) / repeated
        return max(self.variance, sum(r * r for r in residual) / left) if left > 0 else self.variance


def solve(law, p, s):
    """Weighted least squares of p / S = 1 + a (p - 1) + b p (p - 1)."""
    y = p / s
    columns = [(p - 1) / y] if law == "amdahl" else [(p - 1) / y, p * (p - 1) / y]
    return np.linalg.lstsq(np.array(columns).T, 1 - 1 / y, rcond=None)[0]


def without(cells, block):
    rest = []
    for cell in cells:
        keep = [i for i, b in enumerate(cell["block"]) if b != block]
        rest.append({key: [cell[key][i] for i in keep] if cell[key] else [] for key in ("block", "value", "time")})
    return rest


def drifts(cells, blocks):
    """Returns whether the drift is part of the model."""
    if blocks < 3 or not all(cell["time"] for cell in cells):
        return False
    plain = Model(cells, blocks, False)
    if plain.df <= 3:
        return False
    # The variation of the times that cells and blocks leave unexplained, relative to the variation within blocks.
    times = [{"block": c["block"], "value": np.exp(np.array(c["time"]) / 1e4), "time": c["time"]} for c in cells]
    left = Model(times, blocks, False).residual * 1e4
    within = 0.0
    for block in range(blocks):
        of_block = np.array([t for c in cells for b, t in zip(c["block"], c["time"]) if b == block])
        within += float(((of_block - of_block.mean()) ** 2).sum()) if len(of_block) else 0.0
    return float(left @ left) > 0.1 * within


def check_fit(fit, study, model, p, speedups):
    names = ["serial_fraction"] if fit["law"] == "amdahl" else ["contention", "coherency"]
    estimate = solve(fit["law"], p, speedups)
    left_out = []
    for block in range(study["blocks"]):
        rest = without(study["cells"], block)
        jackknife = Model(rest, study["blocks"], drifts(rest, study["blocks"]))
        s = np.exp([0.0] + [jackknife.compare(i, 0)[0] for i in range(1, len(p))])
        left_out.append(solve(fit["law"], p, s))
    n = len(left_out)
    smallest = min(len(cell["value"]) for cell in study["cells"])
    t = stats.t.ppf(0.975, min(smallest, n) - 1) if smallest > 1 else None
    possible = min(estimate) > 0 and max(estimate) < 1
    for k, name in enumerate(names):
        mean, low, high = fit["parameters"][name]
        if possible:
            check(name, mean, estimate[k])
        if t is not None and possible:
            deviation = np.std([v[k] for v in left_out], ddof=1) * (n - 1) / np.sqrt(n)
            top = 1 if fit["law"] == "amdahl" else 1e9
            check(name + " low", low, min(max(estimate[k] - t * deviation, 0), mean), 1e-7)
            check(name + " high", high, max(min(estimate[k] + t * deviation, top), mean), 1e-7)
    if not possible:
        return
    # Lack of fit: generalised least squares of the deviations on the level and the law's derivatives.
    a = np.array(list(estimate) + [0.0] * (2 - len(estimate)))
    d = 1 + a[0] * (p - 1) + a[1] * p * (p - 1)
    weight = 1 / np.sqrt([model.variance_of(i) / len(study["cells"][i]["value"]) for i in range(len(p))])
    columns = [weight, -weight * (p - 1) / d] + ([-weight * p * (p - 1) / d] if len(names) == 2 else [])
    deviation = weight * (np.log(speedups) - np.log(p / d))
    x = np.array(columns).T
    rest = deviation - x @ np.linalg.lstsq(x, deviation, rcond=None)[0]
    df = len(p) - x.shape[1]
    f = float(rest @ rest) / df
    check("F", fit["f"], f, 1e-7)
    check("df", fit["deviation_df"], df)
    check("p", fit["p"], stats.f.sf(f, df, model.nu), 1e-7)


def check_study(study):
    cells = study["cells"]
    for cell in cells:
        n, value = len(cell["value"]), np.array(cell["value"])
        check("mean", cell["mean"], value.mean())
        if n < 2:
            continue
        check("deviation", cell["stddev"], value.std(ddof=1))
        half = stats.t.ppf(0.975, n - 1) * value.std(ddof=1) / np.sqrt(n)
        check("low", cell["low"], value.mean() - half)
        check("high", cell["high"], value.mean() + half)
    drift = drifts(cells, study["blocks"])
    if drift != study["model"]["drift"]:
        sys.exit(f"drift: scalelab has {study['model']['drift']}, SciPy {drift}")
    model = Model(cells, study["blocks"], drift)
    check("df", study["model"]["df"], model.df)
    check("s^2", study["model"]["variance"], model.variance)
    logs = [0.0]
    for i, difference in enumerate(study["differences"], start=1):
        log_ratio, error = model.compare(i, 0)
        logs.append(log_ratio)
        check("ratio", difference["ratio"], np.exp(log_ratio))
        check("error", difference["error"], error)
        check("nu", difference["df"], model.nu)
        half = stats.t.ppf(0.975, model.nu) * error
        check("low", difference["low"], np.exp(log_ratio - half))
        check("high", difference["high"], np.exp(log_ratio + half))
    for fit in study["fits"]:
        check_fit(fit, study, model, np.array(study["ranks"]), np.exp(logs))


def check_estimate(what, estimate, expected):
    for name, actual, value in zip(("", " low", " high"), estimate, expected):
        check(what + name, actual, value)


def geometric(values, most=np.inf):
    """The geometric mean with Student's t interval of the logarithms."""
    logs = np.log(values)
    low, high = stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
    return np.exp(logs.mean()), np.exp(low), min(np.exp(high), most)


def slowest_unit(values):
    """Fits log(computation) = repeat + unit by ordinary least squares. Returns the effects relative to their mean, with Bonferroni
    intervals."""
    units, repeats = int(max(v[0] for v in values)) + 1, int(max(v[1] for v in values)) + 1
    x, y = np.zeros((len(values), units + repeats)), np.array([v[2] for v in values])
    for row, (unit, repeat, _) in enumerate(values):
        x[row, unit] = x[row, units + repeat] = 1
    solution, inverse = np.linalg.pinv(x) @ y, np.linalg.pinv(x.T @ x)
    contrasts = np.hstack([np.eye(units) - 1 / units, np.zeros((units, repeats))])
    effects = contrasts @ solution
    unit = int(np.argmax(effects))
    df = len(values) - np.linalg.matrix_rank(x)
    variance = ((y - x @ solution) ** 2).sum() / df * (contrasts[unit] @ inverse @ contrasts[unit])
    return unit, effects[unit], stats.t.ppf(1 - 0.025 / units, df) * np.sqrt(variance)


def check_factors(figures):
    keys = ("step", "exposed", "data")
    base, point = ({key: np.array([run[key] for run in figures[name]]) for key in keys} for name in ("base", "point"))
    for times in (base, point):
        times["work"] = times["step"] - times["exposed"] - times["data"]
        times["busy"] = (times["work"] + times["data"]).max(axis=1)
    work, step = point["work"], point["step"].max(axis=1)
    balance, data, communication = work.mean(axis=1) / work.max(axis=1), work.max(axis=1) / point["busy"], point["busy"] / step
    computation = base["work"].mean(axis=1) / (4 * work.mean(axis=1))
    check_estimate("load balance", figures["load_balance"], geometric(balance, 1))
    check_estimate("data", figures["data"], geometric(data, 1))
    check_estimate("communication", figures["communication"], geometric(communication, 1))
    check_estimate("computation", figures["computation"], geometric(computation))
    check_estimate("product", figures["product"], geometric(balance * data * communication * computation))
    ideal = min(base["work"].mean() / 4, work.mean())
    parts = np.array([ideal, work.mean(), work.max(axis=1).mean(), point["busy"].mean(), step.mean()])
    for name, actual, expected in zip(("ideal", "slower", "imbalance", "data", "communication"), figures["shares"],
                                      np.diff(parts, prepend=0) / step.mean()):
        check("share " + name, actual, expected)
    unit, effect, half = slowest_unit([(rank, repeat, np.log(w)) for repeat, run in enumerate(work) for rank, w in enumerate(run)])
    check("slowest rank", figures["slowest_rank"], unit)
    check_estimate("slowest", figures["slowest"], np.expm1([effect, effect - half, effect + half]))


def check_noise(figures):
    rank, mean = np.array(figures["norms"]).T
    square, trace = (256 * mean - 64 * rank) / (256 - 64), (rank - mean) / (1 / 64 - 1 / 256)
    scale = trace.mean() / square.mean()

    def outside(ratio):
        """The t test of the hypothesis that E[trace] = ratio E[square], which Fieller's interval inverts."""
        return stats.ttest_1samp(trace - ratio * square, 0).pvalue - 0.05

    low, high = (optimize.brentq(outside, *ends, xtol=1e-12, rtol=1e-14) for ends in ((0, scale), (scale, 100 * scale)))
    scales = np.array([scale, low, high])
    check_estimate("critical batch", figures["critical_batch"], scales)
    check_estimate("statistical efficiency", figures["statistical_efficiency"], 1 / (1 + 256 / scales))
    check_estimate("goodput", figures["goodput"], np.array([1000, 950, 1050]) / (1 + 256 / scales))


def check_pair(pair, log_ratio, error, df, critical_is_95, equivalent=0.1):
    """critical_is_95: returns a probability that is 0.95 for the critical value, which is given in standard errors."""
    mean, low, high = np.log1p(pair["effect"])
    check("effect", mean, log_ratio)
    check("end", high - mean, mean - low, 1e-8)
    check("critical value", critical_is_95((high - mean) / error), 0.95)
    # The two one-sided tests of Schuirmann.
    limit = np.log1p(equivalent)
    p = max(stats.t.cdf((log_ratio - limit) / error, df), stats.t.sf((log_ratio + limit) / error, df))
    check("equivalence", pair["equivalence_p"], p, 1e-8)


def check_comparisons(figures):
    cells = figures["cells"]
    model = Model(cells, figures["blocks"], False)
    pairs = [(a, b) for a in range(len(cells)) for b in range(a + 1, len(cells))]
    check("pairs", len(figures["pairs"]), len(pairs))
    for (a, b), pair in zip(pairs, figures["pairs"]):
        log_ratio, error = model.compare(a, b)
        check_pair(pair, log_ratio, error, model.nu,
                   lambda t: stats.studentized_range.cdf(t * np.sqrt(2), len(cells), model.nu))
    t = stats.t.ppf(0.975, model.nu) + stats.t.ppf(0.8, model.nu)
    check("noise floor", figures["noise_floor"], np.expm1(t * np.sqrt(2 * model.variance / figures["blocks"])), 1e-8)

    logs = [np.log(values) for values in figures["studies"]]

    def welch(a, b):
        of_a, of_b = stats.sem(logs[a]) ** 2, stats.sem(logs[b]) ** 2
        df = (of_a + of_b) ** 2 / (of_a**2 / (len(logs[a]) - 1) + of_b**2 / (len(logs[b]) - 1))
        return logs[a].mean() - logs[b].mean(), np.sqrt(of_a + of_b), df

    log_ratio, error, df = welch(0, 1)
    check_pair(figures["two_studies"], log_ratio, error, df, lambda t: stats.t.cdf(t, df) - stats.t.cdf(-t, df))
    for end in np.log1p(figures["two_studies"]["effect"][1:]):
        # SciPy has its own test of Welch: at the ends of the interval its p value is 5%.
        check("Welch", stats.ttest_ind(logs[0] - end, logs[1], equal_var=False).pvalue, 0.05, 1e-7)
    for (a, b), pair in zip([(0, 1), (0, 2), (1, 2)], figures["three_studies"]):
        log_ratio, error, df = welch(a, b)
        check_pair(pair, log_ratio, error, df,
                   lambda t, whole=int(df): stats.studentized_range.cdf(t * np.sqrt(2), 3, whole))


def check_advice(figures):
    cells, ranks = figures["cells"], figures["ranks"]
    confidence = 0.965 if figures["adaptive"] else 0.95
    model = Model(cells, figures["blocks"], False)

    def ratio(a, b):
        if figures["adaptive"]:
            logs = np.log(np.array(cells[a]["value"]) / cells[b]["value"])
            mean, error, df = logs.mean(), stats.sem(logs), len(logs) - 1
        else:
            (mean, error), df = model.compare(a, b), model.nu
        half = stats.t.ppf(0.5 + confidence / 2, df) * error
        return np.exp([mean, mean - half, mean + half])

    for i, size in enumerate(figures["sizes"]):
        epochs = np.array(cells[i]["epoch_seconds"])
        half = stats.t.ppf(0.5 + confidence / 2, len(epochs) - 1) * stats.sem(epochs)
        hours = np.array([epochs.mean(), epochs.mean() - half, epochs.mean() + half]) * 30 / 3600
        for name, actual, expected in zip(("", " low", " high"), size["hours"], hours):
            check("hours" + name, actual, expected, 1e-8)
        for name, actual, expected in zip(("", " low", " high"), size["cost"], hours * ranks[i] * 2):
            check("cost" + name, actual, expected, 1e-8)
        if i == 0:
            continue
        s = ratio(i, i - 1)
        for name, actual, expected in zip(("", " low", " high"), size["gain"], s - 1):
            check("gain" + name, actual, expected, 1e-8)
        # Hours are proportional to 1 / S, and prices to ranks times hours.
        if s[1] <= 1:
            if "hour_price" in size:
                sys.exit("there is a price of an hour although the larger size may save none")
            continue
        before, p = ranks[i - 1], ranks[i]
        price = 2 * (p / s - before) / (1 - 1 / s)
        for name, actual, expected in zip(("", " low", " high"), size["hour_price"], (price[0], price[2], price[1])):
            check("price of an hour" + name, actual, expected, 1e-7)


def check_targets(figures):
    seconds = np.array(figures["seconds"])
    check("time to target", figures["all"], stats.trim_mean(seconds, 1 / len(seconds) + 1e-9))
    # A repeat that missed the target counts as the slowest.
    seconds[figures["missed"]] = 1e9
    check("time to target", figures["without_missed"], stats.trim_mean(seconds, 1 / len(seconds) + 1e-9))
    check("samples to target", figures["samples"], 100 * figures["all"])


def extra_p(p, cost, ranks):
    """The cost of a sample on `ranks` ranks by the best term of Extra-P's normal form."""

    def fit(term, keep):
        x = np.array([np.ones(len(p)), term(p)]).T[keep] / cost[keep, None]
        constant, factor = np.linalg.lstsq(x, np.ones(keep.sum()), rcond=None)[0]
        if factor < 0:
            constant, factor = (x[:, 0] @ np.ones(keep.sum())) / (x[:, 0] @ x[:, 0]), 0.0
        return lambda q: constant + factor * term(q)

    best = None
    for power in (0, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4, 1, 5 / 4, 4 / 3, 3 / 2, 5 / 3, 7 / 4, 2):
        for log_power in (0, 1, 2):
            if power == 0 and log_power == 0:
                continue

            def term(q, power=power, log_power=log_power):
                return np.power(q, power) * np.power(np.log2(q), log_power)

            error = 0.0
            for i in range(len(p)):
                predicted = fit(term, np.arange(len(p)) != i)(p[i])
                error += 2 * abs(predicted - cost[i]) / (abs(predicted) + cost[i])
            if best is None or error < best[0] - 1e-12:
                best = error, term
    return fit(best[1], np.full(len(p), True))(np.float64(ranks))


def check_predictions(figures):
    for models in figures["models"]:
        p, throughput = np.array(models["measured"], dtype=float).T
        ranks, predicted = models["ranks"], models["predicted"]
        s = throughput / throughput[0]
        cost = p / throughput
        serial = min(max(solve("amdahl", p[1:], s[1:])[0], 0), 1)
        check("amdahl", predicted["amdahl"], throughput[0] * ranks / (1 + serial * (ranks - 1)), 1e-8)
        a, b = solve("usl", p[1:], s[1:])
        if min(a, b) > 0:
            check("usl", predicted["usl"], throughput[0] * ranks / (1 + a * (ranks - 1) + b * ranks * (ranks - 1)), 1e-7)
        line = np.polyfit(np.log(p[-2:]), np.log(throughput[-2:]), 1)
        check("log-log", predicted["log-log"], np.exp(np.polyval(line, np.log(ranks))), 1e-8)
        line = np.polyfit(np.log2(p[-2:]), cost[-2:], 1)
        check("1/efficiency", predicted["1/efficiency"], ranks / np.polyval(line, np.log2(ranks)), 1e-8)
        check("extra-p", predicted["extra-p"], ranks / extra_p(p, cost, ranks), 1e-7)
    p, size, seconds = np.array(figures["all_reduces"], dtype=float).T
    terms = np.array([2 * (p - 1), 2 * (p - 1) / p * size]) / seconds
    scale = terms.max(axis=1)
    ring = optimize.nnls((terms / scale[:, None]).T, np.ones(len(p)))[0] / scale
    for name, actual, expected in zip(("alpha", "beta"), figures["ring"], ring):
        check(name, actual / expected, 1, 1e-8)
    scores = figures["scores"]
    k = np.ceil((len(scores) + 1) * 0.9)
    check("conformal factor", figures["conformal"], np.quantile(scores, k / len(scores), method="inverted_cdf"))


def main():
    figures = json.loads(subprocess.run(sys.argv[1:2], check=True, capture_output=True, timeout=60).stdout)
    distributions = figures["distributions"]
    for p, df, quantile in distributions["t"]:
        # At 2.5 degrees of freedom, SciPy's quantile has an error of 5e-10 in the probability. SciPy's distribution
        # function does not have this error.
        check("Student", stats.t.cdf(quantile, df), p)
    for value, numerator, denominator, tail in distributions["f"]:
        check("Fisher", tail, stats.f.sf(value, numerator, denominator))
    for groups, df, quantile in distributions["range"]:
        check("studentised range", stats.studentized_range.cdf(quantile, groups, df), 0.95)
    for study in figures["studies"]:
        check_study(study)
    for factors in figures["factors"]:
        check_factors(factors)
    for what, actual, expected in zip(("unit", "effect", "half"), (figures["units"][key] for key in ("unit", "effect", "half")),
                                      slowest_unit(figures["units"]["values"])):
        check("units: " + what, actual, expected, 1e-8)  # quantiles of SciPy have an error of 5e-10
    check_noise(figures["noise"])
    for comparisons in figures["comparisons"]:
        check_comparisons(comparisons)
    for advice in figures["advice"]:
        check_advice(advice)
    check_targets(figures["targets"])
    check_predictions(figures["predictions"])
    print(f"{checked} figures agree with SciPy")


if __name__ == "__main__":
    main()
