"""Computes advice on world sizes again, from the formulas of the section "Advice" of docs/users/reading-a-curve-statistics.md."""

import collections

import numpy as np
from scipy import stats
from scipy_check import check, check_estimate, mean_interval, same, student
from scipy_model import LEAST_RESAMPLED, MOST_RESAMPLED, Model, in_common

# n: the repeats from which an interval comes; half: its half width; df: its degrees of freedom, 0 without an interval.
Margin = collections.namedtuple("Margin", "distance half n df")
# The logarithm of a ratio of two cells, its standard error and its degrees of freedom; n: the common blocks.
Ratio = collections.namedtuple("Ratio", "log error df n")


class Advice:
    def __init__(self, figures):
        self.figures, self.cells, self.ranks = figures, figures["cells"], figures["ranks"]
        self.confidence = 0.965 if figures["adaptive"] else 0.95
        self.sizes = range(len(self.ranks))
        self.by_model = figures["blocks"] < LEAST_RESAMPLED and not figures["adaptive"]
        self.model = Model(self.cells, figures["blocks"], False) if self.by_model else None
        self.measured = bool(self.cells[0]["epoch_seconds"])
        self.deadline = figures["deadline"] if self.measured else 0

    def t(self, df, confidence=None):
        return student(0.5 + (confidence or self.confidence) / 2, df)

    def ratio(self, a, b):
        if a == b:
            return Ratio(0.0, 0.0, 0, len(self.cells[a]["value"]))
        of_a, of_b = in_common(self.cells[a], self.cells[b])
        n = len(of_a)
        if self.by_model:
            log, error = self.model.compare(a, b)
            return Ratio(log, error, max(self.model.nu, 0), n)
        if self.figures["adaptive"]:
            logs = np.log(of_a / of_b)
            return Ratio(logs.mean(), stats.sem(logs), n - 1, n)
        same("blocks are drawn at random", n <= MOST_RESAMPLED, False)
        change = (of_a / of_a.mean() - of_b / of_b.mean()) / n
        return Ratio(np.log(of_a.mean() / of_b.mean()), np.sqrt((change**2).sum() * n / (n - 1)), n - 1, n)

    def speedup(self, a, b):
        """Returns the ratio of the throughputs, and the ends of its interval if there is one."""
        if a == b:
            return np.ones(3)
        ratio = self.ratio(a, b)
        if ratio.df <= 0:
            return np.exp([ratio.log])
        return np.exp(ratio.log + self.t(ratio.df) * ratio.error * np.array([0, -1, 1]))

    def gain(self, i):
        return self.speedup(i, i - 1) ** (1 / np.log2(self.ranks[i] / self.ranks[i - 1])) - 1

    def hours(self, i):
        own, first = self.cells[i]["epoch_seconds"], self.cells[0]["epoch_seconds"]
        if not self.measured:  # relative to the smallest size
            return falling(self.speedup(i, 0), lambda s: 1 / s)
        hours_of_epochs = self.figures["epochs"] / 3600
        if own:
            return hours_of_epochs * mean_interval(own, self.confidence, least=0)
        # Both intervals have half of the error probability.
        confidence = (1 + self.confidence) / 2
        h, ratio = hours_of_epochs * mean_interval(first, confidence, least=0), self.ratio(i, 0)
        if len(h) < 3 or ratio.df <= 0:
            return h[:1] / np.exp(ratio.log)
        half = self.t(ratio.df, confidence) * ratio.error
        return h / np.exp(ratio.log + half * np.array([0, 1, -1]))

    def median_speedup(self, a, b):
        """Returns the median of the ratios within blocks."""
        if a == b:
            return 1.0
        of_a, of_b = in_common(self.cells[a], self.cells[b])
        return np.median(of_a / of_b)

    def median_hours(self, i):
        own = self.cells[i]["epoch_seconds"]
        if not self.measured:
            return 1 / self.median_speedup(i, 0)
        return self.figures["epochs"] / 3600 * np.median(own) if own else self.hours(i)[0]

    def in_time(self, i):
        """Returns None if the deadline is inside the interval."""
        hours = self.hours(i)
        if len(hours) < 3 or hours[1] <= self.deadline < hours[2]:
            return None
        return bool(hours[2] <= self.deadline)

    def pays(self, i):
        """Returns None if the least gain is inside the interval."""
        gain, least = self.gain(i), self.figures["min_gain"]
        if len(gain) < 3 or gain[1] < least <= gain[2]:
            return None
        return bool(gain[1] >= least)

    def margin(self, a, b, limit):
        ratio = self.ratio(a, b)
        half = self.t(ratio.df) * ratio.error if ratio.df > 0 else 0
        return Margin(abs(ratio.log - limit), half, ratio.n, ratio.df)

    def margin_of_hours(self, i):
        hours, own, ratio = self.hours(i), self.cells[i]["epoch_seconds"], self.ratio(i, 0)
        n = len(own or self.cells[0]["epoch_seconds"])
        df = n - 1
        if not own:  # the interval comes from the epochs of the smallest size and from the ratio
            n, df = min(n, ratio.n), min(df, ratio.df)
        half = hours[2] - hours[0] if len(hours) == 3 else 0
        return Margin(abs(hours[0] - self.deadline), half, n, df if len(hours) == 3 else 0)

    def additional(self, margin):
        """Returns the least k for which w(n + k) is below the distance; None if it is more than 100."""
        if margin.df <= 0:
            return 2
        k = np.arange(1, 101)
        sd = margin.half * np.sqrt(margin.n) / self.t(margin.df)
        w = self.t(margin.df * (margin.n + k - 1) / (margin.n - 1)) * sd / np.sqrt(margin.n + k)
        enough = k[w < margin.distance]
        return int(enough[0]) if len(enough) else None

    def recommended(self):
        """Returns the last size before a step that does not pay or, if that is too slow, the first larger one that is not."""
        size = 0
        while size + 1 in self.sizes and self.gain(size + 1)[0] >= self.figures["min_gain"]:
            size += 1
        if self.deadline:
            size = next((i for i in self.sizes[size:] if self.hours(i)[0] <= self.deadline), None)
        return 0 if size is None else self.ranks[size]

    def best(self, per_rank):
        """Returns the size with the largest throughput (per rank), the sizes that could have it, and the additional repeats."""
        value = [self.speedup(i, 0)[0] / (self.ranks[i] if per_rank else 1) for i in self.sizes]
        best = int(np.argmax(value))
        possible, more = [self.ranks[best]], []
        for i in self.sizes:
            ratio = self.speedup(i, best) * (self.ranks[best] / self.ranks[i] if per_rank else 1)
            if i != best and not (len(ratio) == 3 and ratio[2] < 1):
                possible.append(self.ranks[i])
                limit = np.log(self.ranks[i] / self.ranks[best]) if per_rank else 0
                more.append(self.additional(self.margin(i, best, limit)))
        return self.ranks[best], sorted(possible), None if None in more else max(more, default=0)

    def open_steps(self):
        """Yields the steps that may or may not pay, up to the first that does not."""
        for i in self.sizes[1:]:
            if self.pays(i) is False:
                return
            # Whether the step pays does not matter if the smaller size is too slow anyway.
            if self.pays(i) is None and not (self.deadline and self.in_time(i - 1) is False):
                limit = np.log2(self.ranks[i] / self.ranks[i - 1]) * np.log1p(self.figures["min_gain"])
                yield "GAIN", [self.ranks[i - 1], self.ranks[i]], self.additional(self.margin(i, i - 1, limit))

    def open_deadlines(self, candidates):
        """Yields the candidates for which the deadline is inside the interval of the hours."""
        for i in self.sizes:
            if self.deadline and self.in_time(i) is None and (not candidates or self.ranks[i] in candidates):
                ranks = [self.ranks[i]] if self.cells[i]["epoch_seconds"] else [self.ranks[0], self.ranks[i]]
                yield "DEADLINE", ranks, self.additional(self.margin_of_hours(i))

    def check_size(self, i, size):
        hours, price = self.hours(i), self.figures["price"]
        check_estimate("hours", size["hours"], hours)
        check_estimate("cost", size["cost"], hours * self.ranks[i] * price)
        same("in time", size.get("in_time"), self.in_time(i) if self.deadline else None)
        same("undecided", size["undecided"], i > 0 and self.pays(i) is None)
        hours = self.median_hours(i)
        check("median hours", size["medians"][0], hours)
        check("median cost", size["medians"][1], hours * self.ranks[i] * price)
        if i == 0:
            return
        check_estimate("gain", size["gain"], self.gain(i))
        s, p, q = self.speedup(i, i - 1), self.ranks[i - 1], self.ranks[i]
        median = self.median_speedup(i, i - 1)
        check("median gain", size["medians"][2], median ** (1 / np.log2(q / p)) - 1, 1)
        same("price of an hour", "hour_price" in size, len(s) == 3 and bool(s[1] > 1))
        if "hour_price" in size:
            check_estimate("price of an hour", size["hour_price"], falling(s, lambda s: ((q - p) * s / (s - 1) - q) * price))
            check("median price", size["medians"][3], ((q - p) * median / (median - 1) - q) * price, q * price)

    def check(self):
        """Checks the figures. Returns the open decisions."""
        advice = self.figures["advice"]
        same("sizes", len(advice["sizes"]), len(self.ranks))
        for i, size in enumerate(advice["sizes"]):
            self.check_size(i, size)
        same("recommended size", advice["recommended"], self.recommended())
        expected = [*self.open_steps(), *self.open_deadlines(advice["candidates"])]
        for kind, name, per_rank in (("CHEAPEST", "cheapest", True), ("FASTEST", "fastest", False)):
            size, possible, more = self.best(per_rank)
            same(name, advice[name], size)
            if len(possible) > 1:
                expected.append((kind, possible, more))
        actual = [(decision["kind"], decision["ranks"], decision.get("additional_repeats")) for decision in advice["open"]]
        same("open decisions", actual, expected)
        return actual


def falling(estimate, function):
    """Returns the estimate of a function that falls."""
    mapped = function(estimate)
    return mapped[[0, 2, 1]] if len(mapped) == 3 else mapped


def check_advice(figures):
    cases = collections.Counter()
    for study in figures:
        advice = Advice(study)
        for kind, ranks, more in advice.check():
            derived = kind == "DEADLINE" and not study["cells"][study["ranks"].index(ranks[-1])]["epoch_seconds"]
            cases[kind, derived, more is None] += 1
    # Each kind of decision must occur with few and with too many additional repeats, deadlines also with hours from a speedup.
    kinds = [("GAIN", False), ("DEADLINE", False), ("DEADLINE", True), ("CHEAPEST", False), ("FASTEST", False)]
    same("cases of decisions", sorted(cases), sorted((*kind, none) for kind in kinds for none in (False, True)))
