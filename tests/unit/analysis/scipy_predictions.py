"""Computes predictions and their intervals again, from the formulas of docs/users/predictions.md."""

import numpy as np
from scipy import optimize, stats
from scipy_check import check


def solve(law, p, s, base):
    """Weighted least squares of y D(base) = D(p), where y = p / (base S) and D(p) = 1 + a (p - 1) + b p (p - 1)."""
    columns, right = law_equations(law, p, s, base)
    return np.linalg.lstsq(columns, right, rcond=None)[0]


def solve_possible(law, p, s, base):
    """The same for parameters of at least 0, and a fraction of at most 1."""
    columns, right = law_equations(law, p, s, base)
    return np.clip(optimize.nnls(columns, right)[0], 0, 1 if law == "amdahl" else 1e9)


def law_equations(law, p, s, base):
    y = p / (base * s)
    columns = [(p - 1) / y - (base - 1), p * (p - 1) / y - base * (base - 1)]
    return np.array(columns[:1] if law == "amdahl" else columns).T, 1 - 1 / y


def fit_relative(columns, y):
    """Least squares of relative deviations, with factors of at least 0."""
    terms = np.array(columns) / y
    scale = terms.max(axis=1)
    return optimize.nnls((terms / scale[:, None]).T, np.ones(len(y)))[0] / scale


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


def check_models(figures):
    p, throughput = np.array(figures["measured"], dtype=float).T
    ranks, predicted = figures["ranks"], figures["predicted"]
    s = throughput / throughput[0]
    cost = p / throughput
    for law in ("amdahl", "usl"):
        a, b = [*solve_possible(law, p[1:], s[1:], p[0]), 0.0][:2]
        of_base, of_ranks = (q / (1 + a * (q - 1) + b * q * (q - 1)) for q in (p[0], ranks))
        check(law, predicted[law], throughput[0] * of_ranks / of_base)
    power = np.polyfit(np.log(p[-2:]), np.log(throughput[-2:]), 1)
    line = np.polyfit(np.log2(p[-2:]), cost[-2:], 1)
    models = {"log-log": np.exp(np.polyval(power, np.log(ranks))),
              "1/efficiency": ranks / np.polyval(line, np.log2(ranks)),
              "extra-p": ranks / extra_p(p, cost, ranks)}
    for name, expected in models.items():
        check(name, predicted[name], expected)
    for envelope in figures["envelopes"]:
        used = list(models.values()) + ([envelope["replayed"]] if "replayed" in envelope else [])
        widening = np.hypot(envelope["noise"], (0.01 if "replayed" in envelope else 0.04) * np.log2(ranks / p[-1]))
        check("prediction", envelope["mean"], stats.gmean(used))
        check("prediction low", envelope["low"], min(used) * (1 - widening))
        check("prediction high", envelope["high"], max(used) * (1 + widening))


def largest_of(count):
    """Blom's approximation of the expected largest of normal values."""
    return stats.norm.ppf((count - 0.375) / (count + 0.25))


def ring_seconds(p, ring, size):
    return 2 * (p - 1) * ring[0] + 2 * (p - 1) / p * size * ring[1]


def exposed_seconds(size, ranks, ring, slower):
    """The mean over the steps of the time from the end of backward to the end of the last all-reduce."""
    exposed = []
    for step in size["steps"]:
        bytes_of, ready, _ = np.array(step["buckets"]).T
        seconds = ring_seconds(ranks, ring, bytes_of)
        # Let i be the last bucket that is reduced as soon as it is ready. All later buckets then wait for the bucket before them.
        end = max(ready[i] * slower + seconds[i:].sum() for i in range(len(ready)))
        exposed.append(max(0.0, end - step["backward"] * slower))
    return np.mean(exposed)


def computation(sizes, batch, ranks_per_node):
    """The computation of the slowest rank with `batch` samples: u + v batch, in proportion to that of the largest size."""
    last = sizes[-1]
    if len({size["batch"] for size in sizes}) == 1:
        return last["compute"]
    full = [size for size in sizes if size["ranks"] >= ranks_per_node]
    fitted = full if len(full) >= 2 else sizes
    batches = np.array([size["batch"] for size in fitted])
    u, v = fit_relative([np.ones(len(fitted)), batches], np.array([size["compute"] for size in fitted]))
    return last["compute"] * (u + v * batch) / (u + v * last["batch"])


def check_replay(figures):
    sizes, ranks, per_node = figures["sizes"], figures["ranks"], figures["ranks_per_node"]
    last = sizes[-1]
    w = computation(sizes, figures["batch"], per_node)
    several = [size for size in sizes if size["ranks"] > 1]
    same = [size for size in several if per_node == 0 or (size["ranks"] > per_node) == (ranks > per_node)]

    # With recorded buckets.
    reduces = np.array([(size["ranks"], bucket[0], bucket[2])
                        for size in same for step in size["steps"] for bucket in step["buckets"]])
    p, size, seconds = reduces.T
    ring = figures.get("network") or fit_relative([2 * (p - 1), 2 * (p - 1) / p * size], seconds)
    slower = w / last["compute"]
    wait = max(0.0, last["exposed"] - exposed_seconds(last, last["ranks"], ring, 1))
    check("replay of buckets", figures["buckets"], w + exposed_seconds(last, ranks, ring, slower) +
          wait * slower * largest_of(ranks) / largest_of(last["ranks"]))

    # With the mean times of steps.
    p, exposed = np.array([(size["ranks"], size["exposed"]) for size in same]).T
    link = fit_relative([p - 1, (p - 1) / p], exposed) if len(same) > 1 else [0, exposed[0] / ((p[0] - 1) / p[0])]
    of_last, of_ranks = (link[0] * (q - 1) + link[1] * (q - 1) / q for q in (last["ranks"], ranks))
    growth = of_ranks / of_last
    # The wait for slower ranks is at most the communication of the size that communicates least.
    waiting = min(size["communication"] / size["compute"] / largest_of(size["ranks"]) for size in several)
    moved = max(last["communication"] - waiting * largest_of(last["ranks"]) * last["compute"], last["exposed"])
    hidden = max((moved - last["exposed"]) / last["compute"], 0.5)
    check("replay of mean steps", figures["mean_steps"],
          w + max(last["exposed"] * growth, moved * growth - hidden * w))


def check_predictions(figures):
    for models in figures["models"]:
        check_models(models)
    for replay in figures["replays"]:
        check_replay(replay)
    p, size, seconds = np.array(figures["all_reduces"], dtype=float).T
    ring = fit_relative([2 * (p - 1), 2 * (p - 1) / p * size], seconds)
    for name, actual, expected in zip(("alpha", "beta"), figures["ring"], ring):
        check(name, actual, expected)
    scores = figures["scores"]
    k = np.ceil((len(scores) + 1) * 0.9)
    check("conformal factor", figures["conformal"], np.quantile(scores, k / len(scores), method="inverted_cdf"))
