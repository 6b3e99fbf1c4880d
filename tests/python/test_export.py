"""`scalelab study export` and `study get`, compared with the Python client, and the export of the Python client."""
import importlib.util
import json
import math
import os
import sqlite3
import struct
import subprocess
import sys
import unittest
from unittest import mock

import pandas

import fixture
import scalelab
from scalelab import export


class ExportTest(fixture.InDirectory):
    @classmethod
    def setUpClass(cls):
        cls.service = fixture.Service()
        cls.addClassCleanup(cls.service.close)
        (cls.service.dir / "train.py").write_text(fixture.TRAIN, encoding="utf-8")
        cls.client = scalelab.Client(cls.service.address)
        cls.addClassCleanup(cls.client.close)
        before = os.getcwd()
        os.chdir(cls.service.dir)
        study = fixture.study_of(zip=[{"momentum": [0.9, 0.99], "weight_decay": [0, 0.1]}], measure={"warmup_steps": 2})
        study["matrix"]["command"] = [study["fixed"].pop("command"), [sys.executable, "./train.py", 'a "quoted", word']]
        cls.study = cls.client.wait(cls.client.submit(study)).name
        os.chdir(before)

    def export(self, form, *more):
        self.service.run("study", "export", self.study, "--format", form, "-o", str(self.dir / form), *more)
        return self.dir / form

    def frames(self):
        return {"runs": self.client.runs(self.study), "metrics": self.client.metrics(self.study), "curve": self.client.curve(self.study)}

    def rows(self, frame):
        """Returns the cells as text, so that the types of the file do not matter; nothing, NaN and "" are equal."""
        def text(value):
            if value is None or value is pandas.NaT or value == "" or (isinstance(value, float) and math.isnan(value)):
                return ""
            if isinstance(value, pandas.Timestamp):
                return value.tz_convert(None).isoformat(timespec="microseconds")
            if isinstance(value, str) and value.endswith("Z") and value[4] == "-":
                return pandas.Timestamp(value).tz_convert(None).isoformat(timespec="microseconds")
            return repr(float(value)) if isinstance(value, (int, float)) or hasattr(value, "dtype") else str(value)

        return [[text(value) for value in row] for row in frame.itertuples(index=False, name=None)]

    def check(self, name, written):
        expected = self.frames()[name]
        self.assertEqual(list(written.columns), list(expected.columns))
        self.assertGreater(len(written), 0)
        self.assertEqual(self.rows(written), self.rows(expected))

    def test_csv_has_the_values_of_the_dataframes(self):
        directory = self.export("csv")
        self.assertEqual(sorted(path.name for path in directory.iterdir()), ["curve.csv", "metrics.csv", "runs.csv", "study.yaml"])
        for name in ("runs", "metrics", "curve"):
            self.check(name, pandas.read_csv(directory / f"{name}.csv", float_precision="round_trip"))

    def test_json_has_the_values_of_the_dataframes(self):
        directory = self.export("json")
        for name in ("runs", "metrics", "curve"):
            self.check(name, pandas.DataFrame(json.loads((directory / f"{name}.json").read_text())))

    def test_sqlite_has_the_values_of_the_dataframes(self):
        directory = self.export("sqlite")
        self.export("sqlite")  # replaces it
        self.assertEqual(sorted(path.name for path in directory.iterdir()), ["study.sqlite", "study.yaml"])
        database = sqlite3.connect(directory / "study.sqlite")
        self.addCleanup(database.close)
        for name in ("runs", "metrics", "curve"):
            self.check(name, pandas.read_sql(f"SELECT * FROM {name}", database))

    @unittest.skipUnless(importlib.util.find_spec("pyarrow"), "needs pyarrow, which deploy/frameworks trainers installs")
    def test_parquet_has_the_values_of_the_dataframes(self):
        self.python("parquet")
        for name in ("runs", "metrics", "curve"):
            self.check(name, pandas.read_parquet(self.dir / "parquet" / f"{name}.parquet"))

    def test_tensorboard_has_the_points_of_rank_0(self):
        self.python("tensorboard")
        metrics = self.client.metrics(self.study, rank=0)
        for run, of_run in metrics.groupby("run"):
            path = self.dir / "tensorboard" / ("run-" + run.rsplit("/", 1)[-1]) / "events.out.tfevents.scalelab"
            expected = sorted((key, max(step, 0), struct.unpack("<f", struct.pack("<f", value))[0])
                              for key, step, value in zip(of_run["key"], of_run["step"], of_run["value"]))
            self.assertEqual(sorted(scalars(path.read_bytes())), expected)

    def python(self, form):
        subprocess.run([sys.executable, "-m", "scalelab", "export", self.study, "--format", form, "-o", str(self.dir / form), "--server",
                        self.service.address], check=True, capture_output=True, timeout=fixture.WITHIN)

    def test_the_command_line_runs_the_python_client_for_its_formats(self):
        this_python = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        with mock.patch.dict(os.environ, PATH=this_python):
            self.assertTrue(list(self.export("tensorboard").glob("run-*/events.out.tfevents.scalelab")))
        with mock.patch.dict(os.environ, PATH=this_python, PYTHONPATH=""):
            for form in ("parquet", "tensorboard"):
                with self.assertRaisesRegex(AssertionError, rf"python3 -m scalelab export {self.study} --format {form} -o"):
                    self.export(form)

    def test_the_exit_codes_are_those_of_the_command_line(self):
        def code(*words):
            command = [sys.executable, "-m", "scalelab", "export", *words, "--format", "tensorboard", "-o", str(self.dir / "out")]
            return subprocess.run(command, capture_output=True, timeout=fixture.WITHIN, check=False).returncode

        self.assertEqual(code(self.study, "--server", f"unix:{self.dir}/none"), 6)
        self.assertEqual(code(self.study, "--server", "nowhere"), 2)
        self.assertEqual(code("none", "--server", self.service.address), 1)
        self.assertEqual(code(self.study, "--server", self.service.address, "--timeout", "60"), 0)

    def test_a_directory_that_cannot_be_written_is_named(self):
        path = self.write("file", "")
        with self.assertRaisesRegex(AssertionError, f"cannot create {path}: "):
            self.service.run("study", "export", self.study, "-o", path)

    def test_the_printed_study_file_means_the_same_study(self):
        for path in [self.write("all.yaml", EVERY_SECTION), self.study]:
            name = path if path == self.study else self.service.run("study", "submit", path).strip()
            printed = self.write("printed.yaml", self.service.run("study", "get", name))
            again = self.service.run("study", "submit", printed).strip()
            for study in (name, again):
                if study != self.study:
                    self.client.cancel(study)
            first, second = (self.service.json("study", "show", study)["study"]["spec"] for study in (name, again))
            self.assertEqual(second, first)
            self.assertEqual(self.service.json("study", "get", name), first)


class NameTest(fixture.InDirectory):
    def test_all_files_have_the_study_that_a_name_means_at_first(self):
        client = mock.Mock()
        client.study_points.return_value = []
        export.export(client, "last", "tensorboard", self.dir / "out")
        client.study.assert_called_once_with("last")
        self.assertIs(client.study_points.call_args.args[0], client.study.return_value)


class RecordsTest(unittest.TestCase):
    def test_a_number_that_is_too_large_for_tensorboard_is_infinite(self):
        records = export._records([(1.0, 3, "perplexity", 1e300), (1.0, 4, "perplexity", -1e300), (1.0, 5, "perplexity", 2.0)])
        self.assertEqual(scalars(b"".join(records)), [("perplexity", 3, math.inf), ("perplexity", 4, -math.inf), ("perplexity", 5, 2)])


class MissingPointsTest(fixture.InDirectory):
    def test_runs_without_points_are_left_out_and_removed_points_are_named(self):
        service = fixture.Service("retention:\n  database: {max_size: 1MiB}\n")
        self.addCleanup(service.close)
        client = scalelab.Client(service.address)
        self.addCleanup(client.close)
        self.write("train.py", fixture.TRAIN)
        os.chdir(self.dir)
        study = fixture.study_of(repeats=1)
        study["fixed"]["max_steps"] = 60_000  # more than 1 MiB
        study = client.wait(client.submit(study))
        service.run("admin", "prune")
        with self.assertWarnsRegex(UserWarning, "the points of studies/1/runs/1 were removed by retention"):
            self.assertEqual(list(client.metrics(study).columns), ["run", "rank", "step", "time", "key", "value"])
        with self.assertRaisesRegex(scalelab.ScalelabError, "were removed by retention"):
            client.metrics(run=1)
        service.run("study", "export", study.name, "-o", "data")
        self.assertEqual((self.dir / "data" / "metrics.csv").read_text(), "run,rank,step,time,key,value\n")
        self.assertEqual(len(pandas.read_csv(self.dir / "data" / "runs.csv")), 2)
        service.run("admin", "drain")
        waiting = client.submit(fixture.study_of(repeats=1))
        client.cancel(waiting)
        self.assertTrue(client.metrics(waiting).empty)


EVERY_SECTION = r"""
study: every-section
fixed:
  engine: custom
  command: [sh, ./train.sh, --lr, 1e-3, "true", "", "a \"b\": {{c}}\t# d\\", "ü", "no", "12"]
  data_dir: images
  max_steps: 10
  momentum: 0.123456789012345
matrix:
  ranks: {pow2: [1, 4]}
  batch_norm: [train, eval]
zip:
  - {epochs: [1, 2], weight_decay: [0, 1e-20]}
exclude:
  - {ranks: 4, batch_norm: eval}
scaling: {mode: weak, batch_per_rank: 8}
lr: {base: 0.05, rule: sqrt, reference_batch: 64, warmup_epochs: 0.5}
repeats: 3
seed: 123456789012345
measure: {warmup_steps: 0, evaluate: false, target_accuracy: 0.75}
order: listed
baseline: {ranks: 1}
resources: {time: 1-01:30:05, cpus_per_rank: 1, exclusive: false, memory: }
slurm: {sbatch_options: {constraint: "a100&nvme", nice: 5}}
retry: {max: 0, on: [node_fail, timeout]}
limits: {concurrent_allocations: 1, gpu_hours: 0.5}
allocation: per-run
on_unusable: exclude
priority: -5
visibility: private
notify: {on: [end, first_failure], webhook: "http://localhost/x?y=1"}
""".replace(", memory: ", "")


def scalars(data):
    """Returns key, step and value of each scalar in an event file of TensorBoard."""
    found = []
    while data:
        (size,) = struct.unpack_from("<Q", data)
        event, data = data[12 : 12 + size], data[16 + size :]
        if event[9] == 0x10:  # field 2, the step
            step, at, shift = 0, 10, 0
            while True:
                step |= (event[at] & 127) << shift
                at, shift = at + 1, shift + 7
                if event[at - 1] < 128:
                    break
            value = event[at + 4 :]  # skips the tags and lengths of `summary` and `value`, which take a known number of bytes
            found.append((value[2 : 2 + value[1]].decode(), step, struct.unpack("<f", value[-4:])[0]))
    return found


if __name__ == "__main__":
    unittest.main()
