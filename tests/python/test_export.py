"""`scalelab study export` and `study get`, compared with the Python client, and the export of the Python client."""
import contextlib
import importlib.util
import json
import math
import os
import random
import resource
import signal
import sqlite3
import struct
import subprocess
import sys
import unittest
from unittest import mock

import pandas
from scalelab.v1 import result_pb2

import fixture
import scalelab
from scalelab import __main__ as program
from scalelab import export, frames

NEEDS_PYARROW = unittest.skipUnless(importlib.util.find_spec("pyarrow"), "needs pyarrow, which deploy/frameworks trainers installs")


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
        self.assertEqual(sorted(path.name for path in directory.iterdir()),
                         ["attempts.csv", "curve.csv", "metrics.csv", "runs.csv", "study.yaml"])
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

    @NEEDS_PYARROW
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

    def test_a_file_that_becomes_too_large_is_named(self):
        # Files have at most 1024 bytes. Python 3.11 would keep a byte-code file that the limit has cut, and fail to read it later.
        limited = ["sh", "-c", 'ulimit -f 1; PYTHONDONTWRITEBYTECODE=1 exec "$@"', "sh"]
        command_line = [fixture.PROGRAMS / "scalelab", "--server", self.service.address, "study", "export", self.study]
        python = [sys.executable, "-m", "scalelab", "export", self.study, "--server", self.service.address]
        for command, form, reason in [(command_line, "csv", "runs.csv: File too large"),
                                      (command_line, "json", "runs.json: File too large"),
                                      (command_line, "sqlite", "study.sqlite: disk I/O error"),
                                      (python, "tensorboard", "run-[0-9]+/events.out.tfevents.scalelab: File too large")]:
            done = subprocess.run([*limited, *command, "--format", form, "-o", self.dir / form], capture_output=True, text=True,
                                  timeout=fixture.WITHIN, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stderr, f"^scalelab: cannot write {self.dir}/{form}/{reason}; check its directory, your permissions and "
                                          "the free space\n$")
            self.assertEqual(list(self.dir.rglob("*.part")), [])

    def test_a_directory_that_cannot_be_written_is_named(self):
        path = self.write("file", "")
        with self.assertRaisesRegex(AssertionError, f"cannot create {path}: "):
            self.service.run("study", "export", self.study, "-o", path)

    def test_the_printed_study_file_means_the_same_study(self):
        for path in [self.write("all.yaml", EVERY_SECTION), self.study]:
            name = path if path == self.study else self.service.run("study", "submit", path).strip()
            first = self.service.json("study", "show", name)["study"]["spec"]
            for options in ([], ["--rendered"]):
                printed = self.write("printed.yaml", self.service.run("study", "get", name, *options))
                again = self.service.run("study", "submit", printed).strip()
                self.client.cancel(again)
                self.assertEqual(self.service.json("study", "show", again)["study"]["spec"], first)
            if path != self.study:
                self.client.cancel(name)
            self.assertEqual(self.service.json("study", "get", name), first)

    def test_the_submitted_study_file_is_printed_with_its_comments(self):
        path = self.write("all.yaml", "# for the paper\n" + EVERY_SECTION)
        for name in (self.client.submit(path).name, self.service.run("study", "submit", path).strip()):
            self.client.cancel(name)
            self.assertEqual(self.service.run("study", "get", name), "# for the paper\n" + EVERY_SECTION)
        name = self.service.run("study", "submit", path, "--set", "repeats=2").strip()
        self.client.cancel(name)
        printed = self.service.run("study", "get", name)
        self.assertIn("repeats: 2\n", printed)
        self.assertNotIn("# for the paper", printed)


class NameTest(fixture.InDirectory):
    def test_all_files_have_the_study_that_a_name_means_at_first(self):
        client = mock.Mock()
        client.study_points.return_value = []
        export.export(client, "last", "tensorboard", self.dir / "out")
        client.study.assert_called_once_with("last")
        self.assertIs(client.study_points.call_args.args[0], client.study.return_value)


class DiskTest(fixture.InDirectory):
    """Exports a study of which the server sends many points."""

    PARTS, POINTS = 600, 1000

    def setUp(self):
        super().setUp()
        self.read = 0
        self.client = mock.Mock()
        self.client.runs.return_value = self.client.curve.return_value = pandas.DataFrame({"run": ["studies/1/runs/1"]})
        self.client.study_points.side_effect = self.points

    def points(self, *_, **__):
        draw = random.Random(1)
        for i in range(self.PARTS):
            self.read += 1
            steps = range(i * self.POINTS, (i + 1) * self.POINTS)
            yield "studies/1/runs/1", result_pb2.ReadPointsResponse(key="train/loss", step=steps, time=[1e9 + step for step in steps],
                                                                    value=[draw.random() for _ in steps])

    @NEEDS_PYARROW
    def test_points_are_written_to_parquet_in_groups(self):
        self.PARTS = 5
        with mock.patch.object(export, "_ROWS", 2 * self.POINTS):
            export.export(self.client, 1, "parquet", self.dir)
        written, expected = pandas.read_parquet(self.dir / "metrics.parquet"), frames.points(self.points())
        pandas.testing.assert_frame_equal(written, expected)
        self.PARTS = 0
        export.export(self.client, 1, "parquet", self.dir)
        self.assertEqual(list(pandas.read_parquet(self.dir / "metrics.parquet").columns), list(expected.columns))

    @NEEDS_PYARROW
    def test_an_axis_with_values_of_several_types_becomes_text_in_parquet(self):
        self.PARTS = 0
        table = {"params.k": ["auto", 0.5, None], "params.b": [True, 3, False], "params.n": [1, None, 0.5], "params.t": ["a", None, "b"],
                 "params.o": [True, None, False]}
        frame = pandas.DataFrame(table)
        self.client.runs.return_value = self.client.curve.return_value = frame
        export.export(self.client, 1, "parquet", self.dir)
        expected = {**table, "params.k": ["auto", "0.5", None], "params.b": ["true", "3", "false"]}
        for name in ("runs", "curve"):
            written = pandas.read_parquet(self.dir / f"{name}.parquet").astype(object)
            self.assertEqual(written.where(written.notna(), None).to_dict("list"), expected)
        self.assertEqual(list(frame["params.b"]), [True, 3, False])

    @NEEDS_PYARROW
    def test_a_write_error_of_parquet_ends_the_reading(self):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))  # Python ignores SIGXFSZ
        with self.assertRaisesRegex(OSError, rf"^cannot write {self.dir}/metrics.parquet: File too large; check its directory"):
            export.export(self.client, 1, "parquet", self.dir)
        self.assertLess(self.read, 300)
        self.client.curve.assert_not_called()
        self.assertEqual([path.name for path in self.dir.iterdir()], ["runs.parquet"])

    @NEEDS_PYARROW
    def test_nothing_is_read_if_the_disk_is_full(self):
        (self.dir / "metrics.parquet.part").symlink_to("/dev/full")
        with self.assertRaisesRegex(OSError, rf"^cannot write {self.dir}/metrics.parquet: No space left on device; check"):
            export.export(self.client, 1, "parquet", self.dir)
        self.assertEqual(self.read, 0)

    def test_a_write_error_of_tensorboard_names_the_file(self):
        self.PARTS = 1
        folder = self.dir / "run-1"
        folder.mkdir()
        (folder / "events.out.tfevents.scalelab.part").symlink_to("/dev/full")
        with self.assertRaisesRegex(OSError, rf"^cannot write {folder}/events.out.tfevents.scalelab: No space left on device; check"):
            export.export(self.client, 1, "tensorboard", self.dir)


def end_group(group):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


class InterruptTest(fixture.InDirectory):
    def test_a_signal_ends_the_command_after_the_python_client(self):
        # A python3 that imports scalelab, and whose export runs until it gets a signal.
        path = self.write("python3", """#!/bin/sh
[ "$1" != -c ] || exit 0
trap 'kill $!; echo ended; trap - INT; kill -INT $$' INT
trap 'kill $!; echo ended; trap - TERM; kill -TERM $$' TERM
sleep 1000 > /dev/null 2>&1 &
echo started
wait
""")
        os.chmod(path, 0o755)
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            command = subprocess.Popen([fixture.PROGRAMS / "scalelab", "study", "export", "1", "--format", "parquet", "-o", "data"],
                                       env={**os.environ, "PATH": f"{self.dir}:{os.environ['PATH']}"}, stdout=subprocess.PIPE, text=True,
                                       start_new_session=True)
            self.addCleanup(end_group, command.pid)
            self.assertEqual(command.stdout.readline(), "started\n")
            command.send_signal(number)  # the Python client gets no signal from this test
            self.assertEqual(command.communicate(timeout=fixture.WITHIN)[0], "ended\n")
            self.assertEqual(command.returncode, status)

    def test_the_python_client_ends_with_130(self):
        with mock.patch.object(sys, "argv", ["scalelab", "export", "1", "--format", "parquet", "-o", "data"]), \
                mock.patch.object(program, "Client"), mock.patch.object(program, "export", side_effect=KeyboardInterrupt):
            self.assertEqual(program.main(), 130)


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
