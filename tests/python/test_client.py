"""scalelab.Client against real services."""
import contextlib
import datetime
import json
import math
import os
import socket
import threading
import time
import unittest
from concurrent import futures
from unittest import mock

import grpc
import pandas
from scalelab.v1 import result_pb2, run_pb2, study_pb2

import fixture
import scalelab
from scalelab import address, connection, frames, plots, study_spec

FILE = """
study: every-section
fixed:
  engine: custom
  command: [sh, ./train.sh, --lr, 1e-3, --flag, true, 007]
  data_dir: images
  max_steps: 1_0      # text in YAML 1.2, which the server refuses
  momentum: .5
matrix:
  ranks: {pow2: [1, 4]}
  batch_norm: [train, eval]
zip:
  - {epochs: [1, 2], weight_decay: [0, 1e-4]}
exclude:
  - {ranks: 4, batch_norm: eval}
scaling: {mode: weak, batch_per_rank: 8}
lr: {base: 0.05, rule: sqrt, reference_batch: 64}
repeats: 3
seed: 11
measure: {warmup_steps: 2, evaluate: false, target_accuracy: 0.75}
order: listed
baseline: {ranks: 1}
resources: {time: 1:30:00, cpus_per_rank: 1, exclusive: false}
slurm: {sbatch_options: {constraint: a100, nice: 5}}
retry: {max: 0, on: [node_fail, timeout]}
limits: {concurrent_allocations: 1}
allocation: per-run
on_unusable: exclude
priority: -5
visibility: private
notify: {on: [end, first_failure], command: nobody}
checkpoint: {every: 1h30m, keep: 3}
"""


class ClientTest(fixture.InDirectory):
    """Reads one study that has finished, in all ways."""

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
        cls.study = cls.client.wait(cls.client.submit(study))
        os.chdir(before)

    def test_a_study_has_the_values_of_study_show(self):
        shown = self.service.json("study", "show", self.study.name)["study"]
        study = self.client.study(self.study.name)
        self.assertEqual(study, self.study)
        self.assertEqual((study.name, study.display_name, study.owner, study.state),
                         (shown["name"], shown["display_name"], shown["owner"], shown["state"]))
        self.assertEqual((study.succeeded, study.failed, study.queued), (4, 4, 0))
        self.assertTrue(study.is_final)
        shown_time = datetime.datetime.fromisoformat(shown["create_time"][:26].rstrip("Z") + "+00:00")
        self.assertLess(abs(study.create_time - shown_time), datetime.timedelta(microseconds=2))
        self.assertIn(study, self.client.studies())

    def test_runs_have_the_values_of_run_show(self):
        frame = self.client.runs(self.study)
        self.assertEqual(list(frame["run"]), [run["name"] for run in self.service.json("run", "list", self.study.name)["runs"]])
        for _, row in frame.iterrows():
            shown = self.service.json("run", "show", row["run"])["run"]
            self.assertEqual({key: row[key] for key in shown["key"]}, shown["key"])
            self.assertEqual((row["state"], row["ranks"], row["seed"], row["attempts"], row["message"],
                              row["cause"] or "CAUSE_UNSPECIFIED"),
                             (shown["state"], shown["spec"]["ranks"], int(shown["spec"]["seed"]), len(shown["attempts"]),
                              shown.get("message", ""), shown["cause"]))
            results = {key: row[key] for key in frame.columns if "/" in key and not math.isnan(row[key])}
            self.assertEqual(results, shown.get("summary", {}))
        self.assertEqual(set(frame[frame["momentum"] == 0.99]["state"]), {"FAILED"})
        self.assertEqual(str(frame["finish_time"].dt.tz), "UTC")

    def test_metrics_have_the_values_of_run_metrics(self):
        frame = self.client.metrics(self.study)
        self.assertEqual(frame["run"].nunique(), 8)
        for run, of_run in frame.groupby("run"):
            shown = [(run, part.get("rank", 0), int(step), part["key"], part["time"][i], part["value"][i])
                     for part in self.service.json("run", "metrics", run)["points"] for i, step in enumerate(part["step"])]
            rows = of_run[["run", "rank", "step", "key", "time", "value"]].itertuples(index=False, name=None)
            self.assertEqual(sorted(rows), sorted(shown))
        some = self.client.metrics(run=frame["run"][0], key="train/loss", rank=0, max_points=5)
        self.assertEqual((set(some["key"]), set(some["rank"]), len(some)), ({"train/loss"}, {0}, 5))

    def test_a_curve_has_the_values_of_curve(self):
        frame = self.client.curve(self.study)
        shown = [(series, point) for series in self.service.json("curve", self.study.name)["series"] for point in series["points"]]
        self.assertEqual(len(frame), len(shown))
        for (_, row), (series, point) in zip(frame.iterrows(), shown):
            self.assertEqual({key: row[key] for key in series["key"]}, series["key"])
            for name in ("ranks", "state", "global_batch", "batch_per_rank", "asked"):
                self.assertEqual(row[name], point[name])
            self.assertEqual((row["n"], row["failed"], row["fingerprint"]),
                             (point.get("n", 0), point.get("failed", 0), series.get("fingerprint", "")))
            self.assertEqual((row["listed_order"], row["series_notes"]),
                             (series.get("listed_order", False), "; ".join(series.get("notes", []))))
            for name in ("throughput", "speedup", "efficiency", "accuracy", "train_loss", "peak_memory"):
                estimate = point.get(name, {})
                for column, field in [(name, "mean"), (name + "_low", "low"), (name + "_high", "high")]:
                    self.assertEqual(row[column] if not math.isnan(row[column]) else None, estimate.get(field), column)

    def test_a_curve_has_the_factors_of_curve(self):
        reference = self.study.name
        frame = self.client.curve(self.study, reference=reference)
        shown = self.service.json("curve", self.study.name, "--factors", "--reference", reference)
        points = [point for series in shown["series"] for point in series["points"]]
        self.assertEqual(list(frame["factors_missing"].fillna("")), [point.get("factors", {}).get("missing", "") for point in points])
        for name in ("load_balance", "product"):
            estimates = [point.get("factors", {}).get(name, {}).get("mean") for point in points]
            self.assertEqual([None if math.isnan(value) else value for value in frame["factors_" + name]], estimates)
        self.assertTrue(self.client.curve(self.study)["factors_load_balance"].isna().all())
        with self.assertRaisesRegex(scalelab.ScalelabError, "99999"):
            self.client.curve(self.study, reference="studies/99999")

    def test_plots_show_the_points(self):
        axes = self.client.plot_curve(self.study)
        (points,) = [line for line in axes.lines if line.get_marker() == "o"]
        curve = self.client.curve(self.study).dropna(subset=["speedup"])
        self.assertEqual(list(points.get_ydata()), list(curve["speedup"]))
        self.assertEqual(axes.get_title(), "small")
        # The service notes it if its load was such that runs overlapped.
        notes = [note for note in self.client.curve(self.study)["series_notes"].iloc[0].split("; ") if note]
        shown = " ".join(" ".join(text.get_text().split()) for text in axes.texts)
        for note in notes:
            self.assertIn(note, shown)
        self.assertEqual(shown.count("note:"), 1 if notes else 0)
        axes = self.client.plot_metric(self.study, key="train/loss")
        self.assertEqual(len(axes.lines), 8)
        self.assertIn("momentum 0.99", axes.get_legend_handles_labels()[1][-1] + axes.get_legend_handles_labels()[1][0])
        with self.assertRaisesRegex(scalelab.ScalelabError, "no estimate 'speed'; it has speedup"):
            self.client.plot_curve(self.study, what="speed")
        with self.assertRaisesRegex(scalelab.ScalelabError, "no run has points of the metric 'train/los'"):
            self.client.plot_metric(self.study, key="train/los")
        plots.pyplot.close("all")

    def test_a_plot_shows_the_notes_of_the_series(self):
        frame = self.client.curve(self.study)
        frame["series_notes"] = ["the runs were executed in the order of the study file"] * len(frame)
        axes = plots.curve(frame, "speedup", "title", None)
        self.assertEqual([text.get_text() for text in axes.texts], ["note: the runs were executed in the order of the study file"])
        axes.figure.canvas.draw()
        box, picture = axes.texts[0].get_window_extent(), axes.figure.bbox
        self.assertTrue(picture.y0 <= box.y0 and box.y1 < axes.xaxis.label.get_window_extent().y0, f"{box} in {picture}")
        frame["series_notes"] = ["a note of many words " * 100] * len(frame)
        lines = plots.curve(frame, "speedup", "title", None).texts[0].get_text().split("\n")
        self.assertEqual((len(lines), lines[-1]), (8, "more notes are in the column series_notes"))
        plots.pyplot.close("all")

    def test_a_study_file_means_the_same_as_for_the_command_line(self):
        path = self.write("study.yaml", FILE.replace("1_0", "10").replace("command: nobody", "webhook: http://localhost/x"))
        (self.dir / "images").mkdir()
        python = self.client.submit(path)
        command_line = self.service.run("study", "submit", path).strip()
        for study in (python.name, command_line):
            self.client.cancel(study)
        specs = [self.service.json("study", "show", study)["study"]["spec"] for study in (python.name, command_line)]
        self.assertEqual(specs[0], specs[1])
        self.assertEqual(specs[0]["fixed"]["command"], ["sh", f"{self.dir}/train.sh", "--lr", "1e-3", "--flag", "true", "007"])
        self.assertEqual(specs[0]["resources"]["time_seconds"], "5400")

    def test_every_example_means_the_same_as_for_the_command_line(self):
        examples = sorted((fixture.SOURCE / "deploy" / "studies").rglob("*.yaml"))
        self.assertGreater(len(examples), 5)
        compared = 0
        for path in examples:
            with self.subTest(path.name):
                spec = study_spec.to_spec(study_spec.read_file(str(path)), str(path.parent))
                engines = {value.string_value for axis in spec.matrix if axis.key == "engine" for value in axis.values}
                engines.add(spec.fixed.fields["engine"].string_value)
                # The service starts the Python frameworks to find out whether it can run other engines.
                if not all(engine in ("", "custom") or engine.startswith("native/") for engine in engines):
                    continue
                try:
                    study = self.client.submit(path)
                except scalelab.ScalelabError as error:  # the study needs GPUs or images
                    self.assertEqual(error.code, "INVALID_ARGUMENT")
                    continue
                other = self.service.run("study", "submit", str(path)).strip()
                self.client.cancel(study)
                self.client.cancel(other)
                specs = [self.service.json("study", "show", name)["study"]["spec"] for name in (study.name, other)]
                self.assertEqual(specs[0], specs[1])
                compared += 1
        self.assertGreater(compared, 1)

    def test_adaptive_repeats_have_the_spelling_of_study_files(self):
        for width in ("2%", 0.02):
            spec = study_spec.to_spec({"study": "a", "repeats": {"min": 3, "max": 8, "until": {"half_width": width}}}, "/")
            self.assertEqual((spec.repeats, spec.adaptive_repeats.min, spec.adaptive_repeats.max, spec.adaptive_repeats.half_width),
                             (0, 3, 8, 0.02))
        with self.assertRaisesRegex(scalelab.ScalelabError, "repeats.until: must be {half_width: 2%}"):
            study_spec.to_spec({"study": "a", "repeats": {"min": 3}}, "/")

    def test_parameters_of_ones_own_become_keys(self):
        spec = study_spec.to_spec({"study": "a", "fixed": {"params": {"dropout": 0.1}, "env": {"LEVEL": 1, "ON": True}},
                                   "matrix": {"params": {"width": [8, 16]}, "ranks": [1]}}, "/")
        self.assertEqual(dict(spec.fixed), {"params.dropout": 0.1, "env.LEVEL": "1", "env.ON": "true"})
        self.assertEqual([axis.key for axis in spec.matrix], ["params.width", "ranks"])

    def test_every_key_of_texts_has_texts(self):
        table = json.loads((fixture.SOURCE / "worker" / "adapters" / "scalelab" / "run_parameters.json").read_text(encoding="utf-8"))
        types = {row["name"]: row["type"] for row in table["parameters"] if row["type"] not in ("map", "string_list")}
        for name, kind in types.items():
            spec = study_spec.to_spec({"study": "a", "fixed": {name: 2024}, "matrix": {name: [True]}, "exclude": [{name: 1}]}, "/")
            text = kind == "string"
            expected = (["/2024", "/true", "/1"] if name == "data_dir" else ["2024", "true", "1"]) if text else [2024, True, 1]
            values = [spec.fixed[name], *(getattr(value, value.WhichOneof("kind")) for value in spec.matrix[0].values),
                      spec.exclude[0][name]]
            self.assertEqual(values, expected, name)
        study = self.write("study.yaml", "study: a\nfixed: {engine: custom, model: 2024, dataset: 1.10}\n")
        self.assertEqual(dict(study_spec.to_spec(study_spec.read_file(study), "/").fixed),
                         {"engine": "custom", "model": "2024", "dataset": "1.10"})

    def test_study_files_have_a_limit_of_values_and_of_levels(self):
        bomb = "k0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        chain = f"k0: &a0 {'[' * 40}x{']' * 40}\n"
        for i in range(1, 10):
            bomb += f"k{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n"
            chain += f"k{i}: &a{i} {'[' * 40}*a{i - 1}{']' * 40}\n"
        deep = "values are nested too deeply"
        for text, problem in [(bomb, "more than 500,000 values"), (chain, deep), ("study: " + "[" * 100_000, deep),
                              ("study: &a [*a]\n", "an alias refers to a node that contains it")]:
            with self.assertRaisesRegex(scalelab.ScalelabError, f"(?s)^f.yaml: this is not valid YAML: {problem}"):
                study_spec.parse(text, "f.yaml")
        self.assertEqual(study_spec.parse("study: &a [[x], {y: z}]\nsame: [*a, *a]\n", "f.yaml")["same"], [[["x"], {"y": "z"}]] * 2)

    def test_the_section_checkpoint_becomes_keys_of_fixed(self):
        for section, keys in [
            ({"every": "10m", "keep": 3}, {"checkpoint_every_minutes": 10, "checkpoint_keep": 3}),
            ({"every": "00:01:30"}, {"checkpoint_every_minutes": 1.5}),
            ({"every": 500}, {"checkpoint_every_steps": 500}),
        ]:
            spec = study_spec.to_spec({"study": "a", "checkpoint": section, "fixed": {"ranks": 1}}, "/")
            self.assertEqual(dict(spec.fixed), {"ranks": 1, **keys})

    def test_no_notification_and_options_without_a_value_are_accepted(self):
        spec = study_spec.to_spec({"study": "a", "notify": "none", "slurm": {"sbatch_options": {"contiguous": None}}}, "/")
        self.assertFalse(spec.HasField("notify"))
        self.assertEqual(dict(spec.slurm.sbatch_options), {"contiguous": ""})

    def test_mistakes_name_the_key_and_the_value(self):
        for study, message in [
            ({"study": "a", "fixd": {}}, r"^fixd: unknown key 'fixd'; known: .*fixed"),
            ({"study": "a", "matrix": {"ranks": 2}}, r"^matrix.ranks: must be a list, not 2; put one value for all cells under fixed"),
            ({"study": "a", "fixed": {"params": {"dropout": 0.1}, "params.dropout": 0.5}},
             r"^fixed.params.dropout: duplicate key 'params.dropout'; keep one"),
            ({"study": "a", "exclude": [{"params.dropout": 0.5, "params": {"dropout": 0.1}}]},
             r"^exclude\[0\].params.dropout: duplicate key 'params.dropout'; keep one"),
            ({"study": "a", "repeats": "2"}, r"^repeats: must be a number, not '2'"),
            ({"study": "a", "repeats": 1.5}, r"^repeats: must be a whole number, not 1.5"),
            ({"study": "a", "repeats": 0}, r"^repeats: must be at least 1, not 0"),
            ({"study": "a", "repeats": {"max": 0, "until": {"half_width": "2%"}}}, r"^repeats.max: must be at least 2, not 0"),
            ({"study": "a", "noise_guard": {"interval_seconds": 0}}, r"^noise_guard.interval_seconds: must be more than 0"),
            ({"study": "a", "retry": {"on": []}}, r"^retry.on: has no causes; to disable retries, write max: 0"),
            ({"study": "a", "fixed": {"params": {"id": 2**53 + 1}}},
             r"^params.id: 9007199254740993 is a whole number that cannot be stored exactly; write it as text"),
            ({"study": "a", "order": "random"}, r"^order: 'random' is none of randomized, listed"),
            ({"study": "a", "resources": {"time": "soon"}}, r"^resources.time: must be a time limit such as"),
            ({"study": "a", "checkpoint": "10m"}, r"^checkpoint: must be a mapping such as \{every: 10m, keep: 2\}, not '10m'"),
            ({"study": "a", "checkpoint": {"keep": 2}}, r"^checkpoint: has no every; add every: 10m"),
            ({"study": "a", "checkpoint": {"every": "soon"}}, r"^checkpoint.every: must be a time such as 10m .*, not 'soon'"),
            ({"study": "a", "checkpoint": {"every": 0}}, r"^checkpoint.every: must be at least 1 step .*, not 0"),
            ({"study": "a", "checkpoint": {"every": 5, "keep": 0}}, r"^checkpoint.keep: must be a whole number, at least 1, not 0"),
            ({"study": "a", "checkpoint": {"every": 5, "kept": 2}}, r"^checkpoint.kept: unknown key 'kept'; known: every, keep"),
            ({"study": "a", "checkpoint": {"every": 5}, "matrix": {"checkpoint_every_steps": [1]}},
             r"^checkpoint.every: is also set as matrix.checkpoint_every_steps; keep one"),
            ({"study": "a", "matrix": {"ranks": {"pow2": [0, 4]}}}, r"^matrix.ranks: pow2 must be a list of two whole numbers"),
            (self.write("a.yaml", "study: a\nstudy: b\n"), r"a.yaml: this is not valid YAML: duplicate key 'study' \(first on line 1\)"),
            (self.write("b.yaml", "study: [\n"), r"b.yaml: this is not valid YAML"),
            (self.write("c.yaml", ""), r"c.yaml: a study file is a mapping that starts with study: NAME"),
            (str(self.dir / "none.yaml"), r"none.yaml: the file cannot be read: No such file"),
            (self.write("d.yaml", FILE), "max_steps must be a whole number, not '1_0'"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(scalelab.ScalelabError, message) as raised:
                self.client.validate(study)
            self.assertEqual(raised.exception.code, "INVALID_ARGUMENT")

    def test_an_error_of_the_server_has_all_violations(self):
        with self.assertRaises(scalelab.ScalelabError) as raised:
            self.client.submit({"study": "a", "fixed": {"engine": "nope"}, "matrix": {"ranks": [0]}})
        error = raised.exception
        self.assertEqual((error.code, error.reason), ("INVALID_ARGUMENT", "INVALID_FIELDS"))
        self.assertEqual([violation.field for violation in error.violations], ["fixed.engine", "matrix.ranks[0]"])
        self.assertIn("matrix.ranks[0]: ranks must be at least 1, not 0", str(error))

    def test_what_does_not_exist_is_named(self):
        for call in (lambda: self.client.study("nothing"), lambda: self.client.runs(99), lambda: list(self.client.watch("nothing")),
                     lambda: self.client.metrics(run=4711)):
            with self.assertRaisesRegex(scalelab.ScalelabError, "there is no (study|run)") as raised:
                call()
            self.assertEqual(raised.exception.code, "NOT_FOUND")

    def test_a_repeated_request_makes_one_study(self):
        os.chdir(self.service.dir)
        first = self.client.submit(fixture.study_of(repeats=1), request_id="once")
        self.assertEqual(self.client.submit(fixture.study_of(repeats=1), request_id="once").name, first.name)
        self.client.cancel(first)

    def test_without_a_server_the_error_comes_at_once_and_names_the_address(self):
        begin = time.monotonic()
        with self.assertRaisesRegex(scalelab.ScalelabError, f"no scalelab server answers at unix:{self.dir}/none: start one") as raised:
            scalelab.Client(f"unix:{self.dir}/none")
        self.assertEqual(raised.exception.code, "UNAVAILABLE")
        self.assertLess(time.monotonic() - begin, 3)


class WatchTest(fixture.InDirectory):
    def setUp(self):
        super().setUp()
        hold = self.dir / "hold"
        hold.touch()
        os.environ["HOLD_BACK"] = str(hold)
        self.hold = hold
        self.service = fixture.Service()
        self.addCleanup(self.service.close)
        self.addCleanup(lambda: hold.unlink(missing_ok=True))
        self.write("train.py", fixture.TRAIN)
        os.chdir(self.dir)
        self.client = scalelab.Client(self.service.address)
        self.study = self.client.submit(fixture.study_of(repeats=1, matrix={"ranks": [1]}))

    def test_watching_survives_a_restart_of_the_server(self):
        looks = []
        running = threading.Event()

        def watch():
            for look in self.client.watch(self.study, timeout=fixture.WITHIN):
                looks.append(look)
                if look.running:
                    running.set()

        thread = threading.Thread(target=watch)
        thread.start()
        self.assertTrue(running.wait(fixture.WITHIN))
        self.service.stop()
        self.service.start()
        self.hold.unlink()
        thread.join(fixture.WITHIN)
        self.assertFalse(thread.is_alive())
        self.assertEqual(looks[-1].study.state, "SUCCEEDED")
        progress = next(look for look in looks if look.running).running[0]
        self.assertEqual((progress.key, progress.repeat, progress.attempt), ({"ranks": 1}, 0, 1))

    def test_watching_survives_a_restart_of_the_server_after_a_quiet_time(self):
        looks, now = [], [time.monotonic()]
        with mock.patch.object(connection, "time", mock.Mock(monotonic=lambda: now[0], sleep=time.sleep)):
            for look in self.client.watch(self.study):
                looks.append(look)
                now[0] += 100  # more than the time for which the client waits for a server
                if look.running and self.hold.exists():
                    self.service.stop()
                    self.service.start()
                    self.hold.unlink()
        self.assertEqual(looks[-1].study.state, "SUCCEEDED")

    def test_waiting_ends_at_its_timeout_and_the_study_continues(self):
        with self.assertRaises(scalelab.ScalelabError) as raised:
            self.client.wait(self.study, timeout=0.3)
        self.assertEqual(raised.exception.code, "DEADLINE_EXCEEDED")
        self.assertFalse(self.client.study(self.study).is_final)
        self.client.cancel(self.study)
        self.assertEqual(self.client.wait(self.study, timeout=fixture.WITHIN).state, "CANCELLED")


class Relay:
    """Forwards the bytes of one connection between two Unix sockets until `vanish`, and counts the pings of the client."""

    def __init__(self, path, target):
        self.pings = threading.Semaphore(0)
        self._gone, self._target = threading.Event(), target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def vanish(self):
        """Forwards nothing more. The connection stays open, as it does when a machine loses its power."""
        self._gone.set()

    def _serve(self):
        with self._listener, self._listener.accept()[0] as client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._target)
            back = threading.Thread(target=self._forward, args=(server, client))
            back.start()
            self._forward(client, server, self._count())
            back.join()

    def _forward(self, source, target, counter=None):
        if counter:
            next(counter)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if counter:
                    counter.send(data)
                if not self._gone.is_set():
                    target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def _count(self):
        """Takes the bytes of an HTTP/2 client: 24 bytes, and then frames, which begin with length, type, flags and stream."""
        data, at = b"", 24
        while True:
            while len(data) >= at + 9:
                if (data[at + 3], data[at + 4] & 1) == (6, 0):  # PING without the flag ACK
                    self.pings.release()
                at += 9 + int.from_bytes(data[at : at + 3], "big")
            data += yield


class QuietServerTest(fixture.InDirectory):
    def test_a_client_notices_that_the_machine_of_a_quiet_server_has_gone(self):
        left = threading.Event()

        def watch(request, context):
            context.add_callback(left.set)
            yield study_pb2.WatchStudyResponse(study=study_pb2.Study(name="studies/1"))
            left.wait(fixture.WITHIN)

        method = grpc.unary_stream_rpc_method_handler(watch, response_serializer=study_pb2.WatchStudyResponse.SerializeToString)
        with futures.ThreadPoolExecutor() as pool:
            server = grpc.server(pool, options=[("grpc.http2.max_ping_strikes", 0)])
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("scalelab.v1.StudyService", {"WatchStudy": method})])
            server.add_insecure_port(f"unix:{self.dir}/server")
            server.start()
            self.addCleanup(server.stop, None)
            self.addCleanup(left.set)
            relay = Relay(f"{self.dir}/relay", f"{self.dir}/server")
            options = {**dict(connection._OPTIONS), "grpc.keepalive_time_ms": 100, "grpc.keepalive_timeout_ms": 500,
                       "grpc.http2.ping_timeout_ms": 500}  # newer versions of gRPC use the last one, too
            with mock.patch.multiple(connection, _OPTIONS=list(options.items()), _PATIENCE=-1), \
                    scalelab.Client(f"unix:{self.dir}/relay") as client:
                looks = client.watch("1")
                self.assertEqual(next(looks).study.name, "studies/1")
                while relay.pings.acquire(blocking=False):
                    pass
                for _ in range(4):  # gRPC sends two without the option for more
                    self.assertTrue(relay.pings.acquire(timeout=fixture.WITHIN))
                relay.vanish()
                with self.assertRaises(scalelab.ScalelabError) as raised:
                    next(looks)
                self.assertEqual(raised.exception.code, "UNAVAILABLE")
            left.set()
            server.stop(None).wait()


class EndedStreamTest(unittest.TestCase):
    """Streams that end before the study does. The clock advances only while the client sleeps, and in `stream`."""

    def setUp(self):
        self.now, self.pauses = 0.0, []
        clock = mock.Mock(monotonic=lambda: self.now, sleep=self.sleep)
        patched = mock.patch.object(connection, "time", clock)
        patched.start()
        self.addCleanup(patched.stop)
        self.calls = []
        self.connection = connection.Connection.__new__(connection.Connection)
        self.connection.server, self.connection._token = address.resolve("insecure:localhost:1", None), "secret"
        self.connection._session, self.connection._no_session = None, ""

    def sleep(self, seconds):
        self.now += seconds
        self.pauses.append(seconds)
        self.assertLess(self.now, 1000, "the client does not stop")

    def follow(self, stream, over=lambda message: False):
        """Follows a stream, which is stream(n) when it is opened for the n-th time."""
        def method(*_, **__):
            call = mock.MagicMock()
            call.__iter__.side_effect = lambda: iter(stream(len(self.calls)))
            self.calls.append(call)
            return call

        return self.connection.follow(method, None, None, over, lambda message: message)

    def test_a_stream_without_messages_is_opened_again_for_a_minute(self):
        with self.assertRaisesRegex(scalelab.ScalelabError, "localhost:1 ended the stream [0-9]+ times in 6[0-5] seconds") as raised:
            list(self.follow(lambda n: []))
        self.assertEqual(raised.exception.code, "UNAVAILABLE")
        for call in self.calls:
            call.cancel.assert_called()

    def test_a_stream_that_repeats_its_messages_is_opened_again_for_a_minute_and_ever_more_rarely(self):
        with self.assertRaisesRegex(scalelab.ScalelabError, "times in 6[0-5] seconds without anything new; read the server's log"):
            list(self.follow(lambda n: ["before", "look"]))
        self.assertEqual(self.pauses[:9], [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])

    def test_a_stream_with_news_is_opened_again_without_an_end_and_ever_more_rarely(self):
        self.assertEqual(list(self.follow(lambda n: [n], lambda message: message == 100)), list(range(1, 101)))
        self.assertEqual(self.pauses[:9], [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])

    def test_a_stream_of_a_quiet_study_that_a_proxy_ends_after_some_time_is_opened_again(self):
        def quiet(n):
            yield "over" if n == 20 else "look"
            self.now += 30

        self.assertEqual(list(self.follow(quiet, lambda message: message == "over"))[-1], "over")
        self.assertEqual(set(self.pauses), {0.05})

    def test_rejected_credentials_after_each_message_end_the_stream(self):
        class Rejected(grpc.RpcError):
            def code(self):
                return grpc.StatusCode.UNAUTHENTICATED

            def details(self):
                return "unknown token"

            def trailing_metadata(self):
                return ()

        def stream(n):
            yield "look"
            raise Rejected

        with mock.patch.object(self.connection, "_renew_session", lambda renewed: not renewed):
            with self.assertRaises(scalelab.ScalelabError) as raised:
                list(self.follow(stream))
        self.assertEqual(raised.exception.code, "UNAUTHENTICATED")

    def test_the_specification_and_the_reason_for_waiting_are_not_news(self):
        study = study_pb2.Study(name="studies/1", state="RUNNING")
        first = study_pb2.WatchStudyResponse(study=study)
        first.study.spec.study = "small"
        streams = [[first, study_pb2.WatchStudyResponse(study=study, waiting_reason="it has waited for 1 second")]]
        self.connection.studies = mock.Mock()
        self.connection.studies.WatchStudy.side_effect = lambda *_, **__: mock.MagicMock(
            __iter__=mock.Mock(side_effect=lambda: iter(streams.pop() if streams else [first])))
        client = scalelab.Client.__new__(scalelab.Client)
        client._connection = self.connection
        with self.assertRaisesRegex(scalelab.ScalelabError, "times in 6[0-5] seconds"):
            list(client.watch(1))


class FrameTest(unittest.TestCase):
    def tearDown(self):
        plots.pyplot.close("all")

    def test_frames_without_rows_or_times_have_the_types_of_others(self):
        for runs in (frames.runs([run_pb2.Run(name="studies/1/runs/1")]), frames.runs([])):
            self.assertEqual([str(runs[name].dt.tz) for name in ("start_time", "finish_time")], ["UTC", "UTC"])
            self.assertEqual(runs["ranks"].dtype.kind, "i")
        self.assertEqual([frames.points([])[name].dtype.kind for name in ("rank", "step", "time", "value")], ["i", "i", "f", "f"])
        self.assertEqual(frames.curve(result_pb2.GetCurveResponse())["speedup_low"].dtype.kind, "f")

    def test_numbers_that_no_point_of_a_curve_has_are_numbers(self):
        full = result_pb2.GetCurveResponse()
        point = full.series.add().points.add(ranks=1)
        for field in point.DESCRIPTOR.fields:
            if field.message_type is not None:
                getattr(point, field.name).SetInParent()
        point.time_to_target.seconds = point.time_to_target.samples = point.time_to_target.samples_ratio = 2
        point.training_difference.step = point.training_difference.epoch = point.factors.slowest_rank.rank = 3
        sparse = result_pb2.GetCurveResponse()
        sparse.series.add().points.add(ranks=1)
        numbers = set(frames.curve(full).select_dtypes("number").columns)
        self.assertLessEqual({"communication_exposed_low", "factors_step_seconds", "factors_slowest_rank_rank", "time_to_target_seconds",
                              "training_difference_step"}, numbers)
        for curve in (sparse, result_pb2.GetCurveResponse()):
            self.assertEqual(set(frames.curve(curve).select_dtypes("number").columns), numbers)
        self.assertIsNone(frames.curve(sparse)["communication_missing"][0])

    def test_each_series_has_the_ideal_line_of_its_baseline(self):
        frame = pandas.DataFrame({"engine": ["a", "a", "b", "b"], "ranks": [1, 2, 2, 4], "speedup": [1, 1.8, 1, 1.9],
                                  "speedup_low": math.nan, "speedup_high": math.nan, "baseline_ranks": [1, 1, 2, 2], "fingerprint": "",
                                  "series_notes": ""})
        lines = plots.curve(frame, "speedup", "title", None).lines
        ideal = {tuple(line.get_ydata()) for line in lines if line.get_linestyle() == "--"}
        self.assertEqual(ideal, {(1, 2, 4), (0.5, 1, 2)})

    def test_the_mean_of_ranks_with_different_steps_is_interpolated(self):
        points = pandas.DataFrame({"run": "studies/1/runs/1", "rank": [0, 0, 0, 1, 1, 1], "step": [0, 2, 4, 0, 3, 4],
                                   "value": [0.0, 2, 4, 10, 13, 14]})
        runs = pandas.DataFrame({"run": ["studies/1/runs/1"], "ranks": [2], "repeat": [0], "position": [0]})
        (line,) = plots.metric(points, runs, "train/loss", None).lines
        self.assertEqual((list(line.get_xdata()), list(line.get_ydata())), ([0, 2, 3, 4], [5, 7, 8, 9]))

    def test_a_plot_shows_the_study_that_a_name_means_at_first(self):
        client = mock.Mock()
        with mock.patch.object(plots, "metric"):
            scalelab.Client.plot_metric(client, "last")
        client.runs.assert_called_once_with(client.study.return_value)
        self.assertIs(client.metrics.call_args.args[0], client.study.return_value)


if __name__ == "__main__":
    unittest.main()
