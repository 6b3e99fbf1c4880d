"""The figures of a bundle and its report, computed again with SciPy from the runs of a real study."""
from __future__ import annotations

import csv
import datetime
import io
import json
import re
import sys
import tarfile
import unittest

from fixture import SOURCE, TRAIN, InDirectory, Service, study_of

try:
    import numpy as np
    from scipy import stats
except ImportError as error:
    raise unittest.SkipTest(f"{error}; install the Debian packages python3-numpy and python3-scipy") from None

sys.path.insert(0, str(SOURCE / "tests" / "unit" / "server" / "analysis"))
import scipy_test  # noqa: E402

REPEATS = 4
EXACT = 1e-9


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
        with tarfile.open(path) as bundle:
            self.files = {member.name: bundle.extractfile(member).read().decode(errors="replace") for member in bundle}

    def study(self):
        study = study_of(matrix={"ranks": [1, 2, 4]}, repeats=REPEATS)
        study["fixed"]["command"][1] = str(self.dir / "train.py")
        return study

    def close(self, actual, expected) -> None:
        self.assertLessEqual(abs(actual - expected), EXACT * max(abs(expected), 1e-3), f"{actual!r} instead of {expected!r}")

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

    def test_curve_table_and_report_have_the_figures_of_scipy(self) -> None:
        (series,) = json.loads(self.files["curve.json"])["series"]
        points = series["points"]
        cells = self.cells()
        self.assertEqual([point["n"] for point in points], [REPEATS] * 3)
        self.assertEqual([len(cell["value"]) for cell in cells], [REPEATS] * 3)
        model = scipy_test.Model(cells, REPEATS, scipy_test.drifts(cells, REPEATS))
        for i, (point, cell) in enumerate(zip(points, cells)):
            value = np.array(cell["value"])
            self.check_estimate(point["throughput"], value.mean(), stats.t.ppf(0.975, REPEATS - 1) * stats.sem(value))
            self.close(point["throughput"]["stddev"], value.std(ddof=1))
            if i == 0:
                continue
            log_ratio, error = model.compare(i, 0)
            low, high = (np.exp(log_ratio + sign * stats.t.ppf(0.975, model.nu) * error) for sign in (-1, 1))
            for name, share in (("speedup", 1), ("efficiency", 2**i)):
                self.close(point[name]["mean"], np.exp(log_ratio) / share)
                self.close(point[name]["low"], low / share)
                self.close(point[name]["high"], high / share)
        for row, cell in zip(csv.DictReader(io.StringIO(self.files["curve.csv"])), cells):
            self.close(float(row["throughput"]), np.mean(cell["value"]))
        throughputs = [float(row["run/throughput"]) for row in csv.DictReader(io.StringIO(self.files["runs.csv"]))]
        self.assertEqual(sorted(throughputs), sorted(v for cell in cells for v in cell["value"]))
        # The report rounds.
        shown = [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\.?\d*", self.files["report.html"])]
        for cell in cells:
            mean = np.mean(cell["value"])
            self.assertLess(min(abs(number - mean) for number in shown), 1e-3 * mean)


if __name__ == "__main__":
    unittest.main()
