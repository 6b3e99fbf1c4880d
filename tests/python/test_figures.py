"""The figures of a bundle and its report, computed again with SciPy from the tables of runs and points of a real study."""
from __future__ import annotations

import csv
import datetime
import io
import json
import re
import sys
import tarfile
import unittest

from fixture import SOURCE, InDirectory, Service, study_of

try:
    import numpy as np
    from scipy import stats
except ImportError as error:
    raise unittest.SkipTest(f"{error}; install the Debian packages python3-numpy and python3-scipy") from None

sys.path.insert(0, str(SOURCE / "tests" / "unit" / "analysis"))
import scipy_test  # noqa: E402

REPEATS = 4
RANKS = [1, 2, 3, 4]  # both laws are fitted from four world sizes on
EXACT = 1e-9
# A tenth of the step does not get shorter with more ranks. The noise is the same in each execution of the test.
TRAIN = """
import scalelab

with scalelab.run() as run:
    seed, ranks = run.spec["seed"], run.world_size
    noise = ((7919 * seed + 104729 * ranks) ** 2 % 1009 / 1009 - 0.5) / 50
    for step in range(run.spec["max_steps"]):
        run.step(loss=(step + 1) ** -0.5 + noise,
                 total_s=0.01 * (0.1 + 0.9 / ranks) * (1 + seed / 100) * (1 + noise + step % 3 / 100))
    run.epoch(accuracy=0.5 + noise)
    run.result(epoch_seconds=2 + noise, comm_share=0.2 + noise, peak_memory_bytes=1e8 * (1 + noise + run.rank / 10))
"""
# The columns of runs.csv that the estimates of a point are made of.
MEANS = {"accuracy": "run/accuracy", "epoch_seconds": "run/epoch_seconds", "comm_share": "run/comm_share",
         "peak_memory": "run/peak_memory_bytes", "train_loss": "run/train_loss"}


class FiguresTest(InDirectory):
    def setUp(self) -> None:
        super().setUp()
        self.write("train.py", TRAIN)
        self.service = Service("local_slots: 4\n")
        self.addCleanup(self.service.close)
        study = self.service.run("study", "submit", self.write("study.yaml", json.dumps(self.study()))).split()[0]
        self.service.run("study", "wait", study)
        self.runs = self.service.json("run", "list", study)["runs"]
        path = str(self.dir / "bundle.tar")
        self.service.run("study", "bundle", study, "-o", path)
        self.verified = self.service.json("verify", path)
        with tarfile.open(path) as bundle:
            self.files = {member.name: bundle.extractfile(member).read().decode(errors="replace") for member in bundle}

    def study(self):
        study = study_of(matrix={"ranks": RANKS}, scaling={"mode": "strong", "global_batch": 96}, repeats=REPEATS)
        study["fixed"]["command"][1] = str(self.dir / "train.py")
        return study

    def close(self, actual, expected) -> None:
        self.assertLessEqual(abs(actual - expected), EXACT * max(abs(expected), 1e-3), f"{actual!r} instead of {expected!r}")

    def table(self, name):
        """Returns the rows of a CSV file of the bundle."""
        return list(csv.DictReader(io.StringIO(self.files[name])))

    def check_mean(self, estimate, values) -> None:
        """Checks the mean of a sample, its standard deviation and its Student's t interval."""
        half = scipy_test.student(0.975, len(values) - 1) * stats.sem(values)
        self.check_estimate(estimate, np.mean(values), half)
        self.close(estimate["stddev"], np.std(values, ddof=1))

    def check_estimate(self, estimate, mean, half) -> None:
        """Checks an estimate; `half` is half of the width of its interval."""
        self.close(estimate["mean"], mean)
        self.close(estimate["low"], mean - half)
        self.close(estimate["high"], mean + half)

    def cells(self):
        """Returns the throughputs of the runs with their blocks and start times, by the number of ranks."""
        cells = {}
        for run in self.runs:
            cell = cells.setdefault(run["key"]["ranks"], {"block": [], "value": [], "time": []})
            cell["block"].append(run.get("repeat", 0))
            cell["value"].append(run["summary"]["run/throughput"])
            began = datetime.datetime.fromisoformat(run["start_time"].replace("Z", "+00:00"))
            cell["time"].append((began - datetime.datetime.fromtimestamp(0, datetime.timezone.utc)).total_seconds())
        first = min(time for cell in cells.values() for time in cell["time"])
        for cell in cells.values():
            cell["time"] = [time - first for time in cell["time"]]
        return [cells[ranks] for ranks in sorted(cells)]

    def check_fits(self, fits, cells, model, speedups, logs) -> None:
        """Checks the parameters of the laws, their intervals, and the tests of lack of fit."""
        study = {"ranks": RANKS, "blocks": REPEATS, "cells": cells}
        self.assertEqual([fit["law"] for fit in fits], ["amdahl", "usl"])
        for fit in fits:
            parameters = {name: [e["mean"], e["low"], e["high"]] for name, e in fit["parameters"].items()}
            test = fit["lack_of_fit"]
            figures = {"law": fit["law"], "parameters": parameters, **{key: test[key] for key in ("f", "deviation_df", "p")}}
            try:
                scipy_test.check_fit(figures, study, model, np.array(speedups), np.array(logs))
            except SystemExit as error:
                self.fail(f"{fit['law']}: {error}")

    def test_curve_table_and_report_have_the_figures_of_scipy(self) -> None:
        (series,) = json.loads(self.files["curve.json"])["series"]
        points = series["points"]
        cells = self.cells()
        self.assertEqual([point["ranks"] for point in points], RANKS)
        self.assertEqual([point["n"] for point in points], [REPEATS] * len(RANKS))
        self.assertEqual([len(cell["value"]) for cell in cells], [REPEATS] * len(RANKS))
        model = scipy_test.Model(cells, REPEATS, scipy_test.drifts(cells, REPEATS))
        logs, speedups = [0.0], [1.0]
        for i, (point, cell) in enumerate(zip(points, cells)):
            self.check_mean(point["throughput"], cell["value"])
            if i == 0:
                continue
            log_ratio, error = model.compare(i, 0)
            logs.append(log_ratio)
            speedups.append(np.exp(log_ratio))
            low, high = (np.exp(log_ratio + sign * scipy_test.student(0.975, model.nu) * error) for sign in (-1, 1))
            for name, share in (("speedup", 1), ("efficiency", RANKS[i])):
                self.close(point[name]["mean"], np.exp(log_ratio) / share)
                self.close(point[name]["low"], low / share)
                self.close(point[name]["high"], high / share)
        self.check_fits(series["fits"], cells, model, speedups, logs)
        for row, cell in zip(self.table("curve.csv"), cells):
            self.close(float(row["throughput"]), np.mean(cell["value"]))
        throughputs = [float(row["run/throughput"]) for row in self.table("runs.csv")]
        self.assertEqual(sorted(throughputs), sorted(v for cell in cells for v in cell["value"]))
        # The report rounds.
        shown = [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\.?\d*", self.files["report.html"])]
        for cell in cells:
            mean = np.mean(cell["value"])
            self.assertLess(min(abs(number - mean) for number in shown), 1e-3 * mean)

    def test_the_other_estimates_are_means_of_the_runs(self) -> None:
        (series,) = json.loads(self.files["curve.json"])["series"]
        runs, curve = self.table("runs.csv"), self.table("curve.csv")
        self.assertEqual(len(runs), REPEATS * len(RANKS))
        for point, row in zip(series["points"], curve):
            for name, column in MEANS.items():
                with self.subTest(name, ranks=point["ranks"]):
                    values = [float(run[column]) for run in runs if int(run["ranks"]) == point["ranks"]]
                    self.check_mean(point[name], values)
                    for end, figure in (("", "mean"), ("_low", "low"), ("_high", "high")):
                        self.close(float(row[name + end]), point[name][figure])

    def test_the_points_are_those_of_the_runs(self) -> None:
        points = {}
        for row in self.table("metrics.csv"):
            points.setdefault((row["run"], row["key"], int(row["rank"])), []).append(float(row["value"]))
        for run in self.table("runs.csv"):
            losses = [points[run["run"], "train/loss", rank] for rank in range(int(run["ranks"]))]
            self.assertEqual([len(series) for series in losses], [12] * int(run["ranks"]))
            self.close(float(run["run/train_loss"]), np.mean(losses[0]))
            self.assertEqual(points[run["run"], "eval/accuracy", 0], [float(run["run/accuracy"])])
        directory = self.dir / "exported"
        self.service.run("study", "export", "last", "-o", str(directory))
        self.assertEqual((directory / "metrics.csv").read_text(encoding="utf-8"), self.files["metrics.csv"])
        self.assertTrue(self.verified["equal"], self.verified)
        self.assertEqual(self.verified["points"], len(self.table("metrics.csv")))
        self.assertEqual(self.verified["not_compared"], [])
        attempts = json.loads(self.files["provenance.json"])["attempts"]
        self.assertEqual([attempt["run"] for attempt in attempts], [run["run"] for run in self.table("runs.csv")])


if __name__ == "__main__":
    unittest.main()
