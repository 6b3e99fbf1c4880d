"""The model of cells and blocks of docs/users/reading-a-curve-statistics.md, with NumPy."""

import numpy as np

# With fewer common blocks, ratios are those of the model; with more than the second number, no blocks are drawn at random.
LEAST_RESAMPLED, MOST_RESAMPLED = 8, 64


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


def in_common(a, b):
    """Returns the values of two cells in the blocks that both have."""
    of_a, of_b = dict(zip(a["block"], a["value"])), dict(zip(b["block"], b["value"]))
    common = sorted(of_a.keys() & of_b.keys())
    return np.array([of_a[block] for block in common]), np.array([of_b[block] for block in common])
