"""Computes shares of simulated studies for docs/users/reading-a-curve-statistics.md and prints them as rows of Markdown tables.

The figures check the documented formulas with many more studies than `scalelab-bench coverage`. The script implements the formulas
itself and uses no code of the project. It needs NumPy and SciPy, and computes on one core. Each figure has random numbers of its own,
so that the same seed and number of studies give the same figure.
"""

import argparse
import zlib

import numpy as np
from scipy import stats

# Of the studies that end when their intervals are narrow: the standard deviations of the logarithm of a run's throughput, the
# largest numbers of blocks, and the half width at which a study ends.
NOISES = (0.002, 0.003, 0.005, 0.007, 0.01, 0.014, 0.017, 0.02, 0.024, 0.028, 0.034, 0.04)
MAX_BLOCKS = (10, 20)
HALF_WIDTH = 0.02


def t_quantile(df, confidence=0.95):
    return stats.t.ppf((1 + confidence) / 2, df)


def percent(share):
    return f"{100 * share:.1f}"


def print_row(*columns):
    print("| " + " | ".join(str(column) for column in columns) + " |", flush=True)


def print_header(title, *columns):
    print(f"\n{title}\n")
    print_row(*columns)
    print("|" + "---|" * len(columns))


class Simulation:
    def __init__(self, studies, seed):
        self.studies = studies
        self.seed = seed

    def random(self, *figure):
        return np.random.default_rng([self.seed, zlib.crc32(repr(figure).encode())])

    # --- Two cells with a fixed number of blocks

    def two_cells(self, rng, n, noise, block_noise=0.0, order="reversed", drift=0.0, step=0.0, missing=0.0):
        """Returns the throughputs relative to the true ones and the times at which the runs begin. Both have the axes study, block and
        cell. A missing run has no number. The throughput falls by `drift` from the first run's begin to the last run's end, and by
        `step` after half of the runs."""
        shape = (self.studies, n, 2)
        first = rng.integers(0, 2, shape[:2])  # the cell that runs first in a block
        if order == "reversed":
            for block in range(1, n, 2):
                first[:, block] = 1 - first[:, block - 1]
        # The number of runs before this one.
        before = 2 * np.arange(n)[:, None] + (np.arange(2) != first[:, :, None])
        begins = np.cumsum(60 * rng.uniform(0.9, 1.1, (self.studies, 2 * n)), axis=1)
        times = np.take_along_axis(begins, before.reshape(self.studies, -1), axis=1).reshape(shape)
        values = 1 + noise * rng.standard_normal(shape)
        values *= np.exp(block_noise * rng.standard_normal((self.studies, n, 1)))
        values *= (1 - drift * before / (2 * n)) * np.where(before >= n, 1 - step, 1)
        values[rng.random(shape) < missing] = np.nan
        return values, times

    # --- Studies that end when their intervals are narrow

    def adaptive(self, rng, noise, least, most, confidence):
        """Returns the share of studies whose interval of the last cell's speedup over the first cell contains the true value. `noise`
        has the deviation of each cell, and `confidence` returns that of the intervals after a number of blocks."""
        logs = np.asarray(noise) * rng.standard_normal((self.studies, most, len(noise)))
        ratios = logs[:, :, 1:] - logs[:, :, :1]
        sums, squares = np.cumsum(ratios, axis=1), np.cumsum(ratios**2, axis=1)
        going, right = np.arange(self.studies), 0
        for n in range(least, most + 1):
            mean = sums[going, n - 1] / n
            variance = (squares[going, n - 1] - n * mean**2) / (n - 1)
            half = t_quantile(n - 1, confidence(n)) * np.sqrt(variance / n)
            ends = np.all(np.expm1(half) <= HALF_WIDTH, axis=1) | (n == most)
            right += np.count_nonzero(np.abs(mean[ends, -1]) <= half[ends, -1])
            going = going[~ends]
        return right / self.studies


def two_cell_intervals(values, times, with_drift):
    """Returns the logarithm of the ratio and its half width by the model of cells and blocks. Studies without an interval have none.

    With two cells, the block effects are the means of the blocks that have both runs, and the model is the line
    log ratio of block i = log ratio + drift x difference of the times in block i."""
    y = np.log(values[:, :, 1] / values[:, :, 0])
    both = np.isfinite(y)
    y = np.where(both, y, 0)
    tau = np.where(both, times[:, :, 1] - times[:, :, 0], 0)
    k = both.sum(axis=1).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, mean_tau = y.sum(axis=1) / k, tau.sum(axis=1) / k
        centred = np.where(both, tau - mean_tau[:, None], 0)
        spread = (centred**2).sum(axis=1)
        # Nearly the same order in all blocks: a drift cannot be distinguished from the ratio.
        fitted = with_drift & (spread > 0.1 * (tau**2).sum(axis=1))
        slope = np.where(fitted, (centred * y).sum(axis=1) / spread, 0)
        ratio = mean - slope * mean_tau
        residual = np.where(both, y - ratio[:, None] - slope[:, None] * tau, 0)
        squares = (residual**2).sum(axis=1)
        df = k - 1 - fitted
        own = squares / np.where(fitted, k - 1.5, k - 1)
        leverage = 1 / k + np.where(fitted, mean_tau**2 / spread, 0)
        half = t_quantile(df) * np.sqrt(np.maximum(squares / df, own) * leverage)
    return ratio, np.where(df > 0, half, np.nan)


def coverage(ratio, half):
    """Returns how many studies have an interval, the share of these intervals that contain the true value and their median half width."""
    shown = np.isfinite(half)
    return np.count_nonzero(shown), np.mean(np.abs(ratio[shown]) <= half[shown]), np.median(half[shown])


def drift_with_two_cells(simulation):
    print_header("Drift with two cells", "n", "order", "drift in the model", "no drift", "drift 5%", "drift 20%", "step of 10%")
    kinds = ({}, {"drift": 0.05}, {"drift": 0.2}, {"step": 0.1})
    for n in (3, 4):
        for order in ("random", "reversed"):
            for with_drift in (False, True):
                cells = []
                for kind in kinds:
                    rng = simulation.random("drift", n, order, kind)
                    values, times = simulation.two_cells(rng, n, noise=0.01, order=order, **kind)
                    _, share, width = coverage(*two_cell_intervals(values, times, with_drift))
                    cells.append(f"{percent(share)} [{100 * width:.1f}]")
                used = " (used)" if order == "reversed" and with_drift == (n >= 4) else ""
                print_row(n, order, ("yes" if with_drift else "no") + used, *cells)


def missing_runs(simulation):
    print_header("Two cells, 30% of runs missing", "n", "studies", "with an interval", "contain the true value")
    for n in (2, 3):
        values, times = simulation.two_cells(simulation.random("missing", n), n, noise=0.02, block_noise=0.05, missing=0.3)
        shown, share, _ = coverage(*two_cell_intervals(values, times, with_drift=False))
        print_row(n, simulation.studies, shown, percent(share))


def used_confidence(cells, least):
    """Returns the confidence that the rule uses, as a function of the number of blocks."""
    later = {2: 0.98, 3: 0.975}.get(least, 0.97)
    return lambda blocks: later if cells <= 2 and blocks > least else 0.965


def adaptive_repeats(simulation):
    print_header("Repeats until the half width is 2%", "studies", "confidence", "`min`", *[f"`max: {most}`" for most in MAX_BLOCKS])

    def row(studies, noise, confidences, least, confidence_at):
        """`noise` has the deviation of each cell relative to the noisiest one."""
        columns = []
        for most in MAX_BLOCKS:
            shares = []
            for noisiest in NOISES:
                rng = simulation.random("adaptive", studies, confidences, least, most, noisiest)
                shares.append(simulation.adaptive(rng, noisiest * np.array(noise), least, most, confidence_at))
            columns.append(percent(min(shares)))
        print_row(studies, confidences, least, *columns)

    row("2 cells", (1, 1), "95%", 2, lambda blocks: 0.95)
    row("2 cells", (1, 1), "97.5%", 2, lambda blocks: 0.975)
    for least in (2, 3, 4):
        row("2 cells", (1, 1), "used", least, used_confidence(2, least))
    for studies, noise in (
        ("4 cells", (1, 1, 1, 1)),
        ("4 cells, noise proportional to the ranks", (1 / 8, 2 / 8, 4 / 8, 1)),
        ("3 cells, one with 100 times the noise of the others", (0.01, 0.01, 1)),
    ):
        for least in (2, 3):
            row(studies, noise, "used", least, used_confidence(len(noise), least))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=100_000, help="simulated studies for each figure")
    parser.add_argument("--seed", type=int, default=20261128)
    options = parser.parse_args()
    simulation = Simulation(options.studies, options.seed)
    drift_with_two_cells(simulation)
    missing_runs(simulation)
    adaptive_repeats(simulation)


if __name__ == "__main__":
    main()
