"""The client of the service.

    client = scalelab.Client()
    study = client.wait(client.submit("study.yaml"))
    client.curve(study)
"""
from __future__ import annotations

import dataclasses
import datetime
import os
import uuid
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterator, Union

from scalelab import address, study_spec
from scalelab.connection import Connection
from scalelab.errors import ScalelabError
from scalelab.v1 import result_pb2, run_pb2, study_pb2

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

_PAGE = 10_000
_LONGEST_STUDY_FILE = 256 << 10  # bytes


@dataclasses.dataclass(frozen=True)
class Study:
    """A snapshot of a study.

    Attributes:
        name: the resource name, "studies/7".
        display_name: the name in the study file.
        owner: the user who submitted it.
        state: "QUEUED", "RUNNING", "SUCCEEDED", "FAILED" or "CANCELLED".
        queued, running, succeeded, failed, cancelled, skipped: the number of its runs in each state. Runs are skipped if the results
            are precise enough without them.
        create_time, start_time, finish_time: the times of these events; None if they have not happened.
        pause_reason: why the study is paused until `scalelab study resume`; empty if it is not paused.
    """

    name: str
    display_name: str
    owner: str
    state: str
    queued: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    create_time: datetime.datetime | None
    start_time: datetime.datetime | None
    finish_time: datetime.datetime | None
    pause_reason: str

    @property
    def is_final(self) -> bool:
        return self.state in ("SUCCEEDED", "FAILED", "CANCELLED")

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a study, which `watch` returns after each change.

    Attributes:
        study: the current state of the study.
        running: the runs that are being executed, with their names and numbers of steps. `total_steps` is 0 if it is not known.
        waiting_reason: why no run is executed although runs are queued; otherwise empty.
    """

    study: Study
    running: list[RunProgress]
    waiting_reason: str


@dataclasses.dataclass(frozen=True)
class RunProgress:
    """A run that is being executed. `train_loss` is None before the first step."""

    run: str
    key: dict[str, Any]
    repeat: int
    attempt: int
    step: int
    total_steps: int
    train_loss: float | None


StudyName = Union[str, int, Study]


class Client:
    """A connection to a scalelab server. Thread-safe. Errors are ScalelabError.

    `server` is "unix:PATH", "HOST:PORT" or "insecure:HOST:PORT". If it is None, the address comes from SCALELAB_SERVER, from the
    configuration file, or is the socket of the user's own service, as in the command-line client. For HOST:PORT, the client
    accepts the certificate that `scalelab login` has accepted. `token_file` is the file of a personal token. If it is None, the
    file comes from SCALELAB_TOKEN_FILE or the configuration file. `timeout` in seconds applies to each call. The streams of
    `watch` and of points have no such limit.

    Arguments named `study` accept a Study, a number, "studies/7", a name (for the newest study of this name) or "last". Arguments
    named `run` accept a number, "runs/12" or "studies/7/runs/12".
    """

    def __init__(self, server: str | None = None, *, token_file: str | os.PathLike[str] | None = None, timeout: float = 60.0) -> None:
        options = address.resolve(server, None if token_file is None else os.fspath(token_file))
        self._connection = Connection(options, timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def submit(self, study: study_spec.StudyLike | str | os.PathLike[str], *, request_id: str | None = None) -> Study:
        """Queues a study, which is a dict or the path of a study file, with the keys of docs/users/write-a-study.md. Returns when
        the study is durable. With a `request_id`, a repeated call returns the study of the first call."""
        spec, text = _read(study)
        if len(text.encode("utf-8")) > _LONGEST_STUDY_FILE:
            text = ""  # the server does not store longer ones
        request = study_pb2.CreateStudyRequest(spec=spec, request_id=request_id or str(uuid.uuid4()), study_file=text)
        return _study(self._connection.call(self._connection.studies.CreateStudy, request).study)

    def validate(self, study: study_spec.StudyLike | str | os.PathLike[str]) -> Study:
        """Makes all checks of `submit`, but does not store the study. The result has no name."""
        request = study_pb2.CreateStudyRequest(spec=_read(study)[0], validate_only=True)
        return _study(self._connection.call(self._connection.studies.CreateStudy, request).study)

    def study(self, study: StudyName = "last") -> Study:
        """Returns the current state of a study."""
        request = study_pb2.GetStudyRequest(name=study_name(study))
        return _study(self._connection.call(self._connection.studies.GetStudy, request).study)

    def studies(self) -> list[Study]:
        """Returns all studies, newest first."""
        request = study_pb2.ListStudiesRequest(page_size=1000)
        studies: list[Study] = []
        while True:
            page = self._connection.call(self._connection.studies.ListStudies, request)
            studies += [_study(study) for study in page.studies]
            if not page.next_page_token:
                return studies
            request.page_token = page.next_page_token

    def watch(self, study: StudyName = "last", *, timeout: float | None = None) -> Iterator[Progress]:
        """Returns the progress of a study: first the current progress, then the progress after every change, at most five times a
        second. Ends when the study is final or paused. Continues after a restart of the server that takes up to a minute. Raises
        ScalelabError with code DEADLINE_EXCEEDED after `timeout` seconds, and with code UNAVAILABLE if for a minute the server cannot
        be reached, or only repeats what it has sent and ends the connection. Neither affects the study."""
        request = study_pb2.WatchStudyRequest(name=study_name(study))
        for look in self._connection.follow(self._connection.studies.WatchStudy, request, timeout, _is_over, _state):
            request.name = look.study.name  # "last" may mean another study when the stream is opened again
            running = [RunProgress(run=one.run, key=_struct(one.key), repeat=one.repeat, attempt=one.attempt, step=one.step,
                                   total_steps=one.total_steps, train_loss=one.train_loss if one.HasField("train_loss") else None)
                       for one in look.running]
            yield Progress(_study(look.study), running, look.waiting_reason)

    def wait(self, study: StudyName = "last", *, timeout: float | None = None) -> Study:
        """Blocks until a study is final or paused, and returns it. Its `state` shows whether all runs have succeeded."""
        last: Study | None = None
        for progress in self.watch(study, timeout=timeout):
            last = progress.study
        if last is None:
            raise ScalelabError(f"the server sent nothing about {study}", "UNKNOWN")
        return last

    def cancel(self, study: StudyName) -> Study:
        """Cancels a study."""
        request = study_pb2.CancelStudyRequest(name=study_name(study))
        return _study(self._connection.call(self._connection.studies.CancelStudy, request).study)

    def runs(self, study: StudyName = "last") -> pandas.DataFrame:
        """Returns the runs of a study in the order of execution, with a row for each run. The columns are the name, the values of
        the axes, repeat, state, cause and message of a failure, times, ranks, batch, seed, and each result, such as
        "run/throughput" and "run/accuracy" (docs/users/metrics.md)."""
        from scalelab import frames

        return frames.runs(self.run_messages(study))

    def metrics(self, of: StudyName = "last", *, run: str | int | None = None, key: str | None = None, rank: int | None = None,
                max_points: int = 0) -> pandas.DataFrame:
        """Returns metric points of all runs of a study, or of one run, with the columns run, rank, step, time, key and value. For
        a metric of an epoch, `step` is the epoch; for a result, it is -1. `max_points` limits the number of points of each key
        and rank of a run; the selected points keep the shape of the curve. `of` is ignored if `run` is given."""
        from scalelab import frames

        if run is not None:
            return frames.points(self.points(run, key=key, rank=rank, max_points=max_points))
        return frames.points(self.study_points(of, key=key, rank=rank, max_points=max_points))

    def curve(self, study: StudyName = "last", *, factors: bool = False, reference: StudyName | None = None) -> pandas.DataFrame:
        """Returns the scaling curve of a study, with a row for each point. The columns are the values of the axes, ranks, n,
        state, batches, and for each estimate, such as throughput, speedup and efficiency, NAME (mean), NAME_low and NAME_high
        (the 95% interval). The last columns are equal for all points of a series: listed_order is True if its runs were executed in
        the order of the study file, and series_notes has what a reader must know about the series.

        With `factors`, the columns factors_... (where the time goes), gradient_noise_... and time_to_target_... have values. A
        `reference` is a study whose runs are the reference convergence points of MLPerf for time_to_target_..., and implies
        `factors`."""
        from scalelab import frames

        return frames.curve(self.curve_message(study, factors=factors, reference=reference))

    def plot_curve(self, study: StudyName = "last", *, what: str = "speedup", ax: Axes | None = None) -> Axes:
        """Draws the curve: `what` is speedup, efficiency, throughput or another estimate of `curve`. The notes of the series
        are below the picture. Returns the axes of matplotlib."""
        from scalelab import frames, plots

        message = self.curve_message(study)
        return plots.curve(frames.curve(message), what, message.display_name, ax)

    def plot_metric(self, study: StudyName = "last", *, key: str = "train/loss", ax: Axes | None = None) -> Axes:
        """Draws a metric over the steps, with a line for each run, which is the mean over its ranks. Returns the axes of
        matplotlib."""
        from scalelab import plots

        study = self.study(study)  # a name may mean another study later
        return plots.metric(self.metrics(study, key=key, max_points=2000), self.runs(study), key, ax)

    def run_messages(self, study: StudyName = "last") -> list[Any]:
        """Returns the runs of a study as scalelab.v1.run_pb2.Run, with all results and attempts."""
        requests = (run_pb2.GetRunRequest(name=run.name) for run in self._list(study))
        return [answer.run for answer in self._connection.call_all(self._connection.runs.GetRun, requests)]

    def curve_message(self, study: StudyName = "last", *, factors: bool = False, reference: StudyName | None = None) -> Any:
        """Returns the curve of a study as scalelab.v1.result_pb2.GetCurveResponse, with fits and notes. For `factors` and
        `reference` see `curve`."""
        compared = "" if reference is None else study_name(reference)
        request = result_pb2.GetCurveRequest(study=study_name(study), factors=factors, reference=compared)
        return self._connection.call(self._connection.results.GetCurve, request)

    def points(self, run: str | int, *, key: str | None = None, rank: int | None = None, max_points: int = 0) -> Iterator[tuple[str, Any]]:
        """Returns the points of a run as pairs: the name of the run, and a scalelab.v1.result_pb2.ReadPointsResponse with the
        points of one key and rank."""
        name = run_name(run)
        request = result_pb2.ReadPointsRequest(run=name, key=key or "", rank=rank, max_points=max_points)
        for part in self._connection.stream(self._connection.results.ReadPoints, request):
            yield name, part

    def study_points(self, study: StudyName = "last", *, key: str | None = None, rank: int | None = None,
                     max_points: int = 0) -> Iterator[tuple[str, Any]]:
        """Returns the pairs of `points` for all runs of a study that have started. Prints a warning for each run whose points
        retention has removed."""
        for run in self._list(study):
            try:
                yield from self.points(run.name, key=key, rank=rank, max_points=max_points)
            except ScalelabError as error:
                if error.reason == "REMOVED_BY_RETENTION":
                    warnings.warn(str(error), stacklevel=2)
                elif error.reason != "ATTEMPT_NOT_FOUND":
                    raise

    def _list(self, study: StudyName) -> list[Any]:
        request = run_pb2.ListRunsRequest(parent=study_name(study), page_size=_PAGE)
        runs: list[Any] = []
        while True:
            page = self._connection.call(self._connection.runs.ListRuns, request)
            runs += page.runs
            if not page.next_page_token:
                return runs
            request.page_token = page.next_page_token


def study_name(study: StudyName) -> str:
    """Returns the resource name of a study."""
    text = study.name if isinstance(study, Study) else str(study)
    return text if text.startswith("studies/") else "studies/" + text


def run_name(run: str | int) -> str:
    """Returns the resource name of a run."""
    text = str(run)
    return text if "/" in text else "runs/" + text


def _read(study: study_spec.StudyLike | str | os.PathLike[str]) -> tuple[study_pb2.StudySpec, str]:
    """Returns the specification, and the text of the study file; an empty text if `study` is a dict."""
    if isinstance(study, (str, os.PathLike)):
        path = os.fspath(study)
        text = study_spec.read_text(path)
        return study_spec.to_spec(study_spec.parse(text, path), os.path.dirname(os.path.abspath(path))), text
    return study_spec.to_spec(study, os.getcwd()), ""


def _study(message: Any) -> Study:
    counts = message.counts
    return Study(name=message.name, display_name=message.display_name, owner=message.owner,
                 state=study_pb2.Study.State.Name(message.state), queued=counts.queued, running=counts.running, succeeded=counts.succeeded,
                 failed=counts.failed, cancelled=counts.cancelled, skipped=counts.skipped, create_time=_time(message, "create_time"),
                 start_time=_time(message, "start_time"), finish_time=_time(message, "finish_time"), pause_reason=message.pause_reason)


def _is_over(look: Any) -> bool:
    # A paused study does not continue by itself, so the watch ends.
    return _study(look.study).is_final or (bool(look.study.pause_reason) and not look.running)


def _state(look: Any) -> bytes:
    """Returns the content of a message. Leaves out the specification, which only the first message of a stream has, and the
    reason for waiting, whose text may contain times."""
    bare = study_pb2.WatchStudyResponse()
    bare.CopyFrom(look)
    bare.ClearField("waiting_reason")
    bare.study.ClearField("spec")
    state: bytes = bare.SerializeToString(deterministic=True)
    return state


def _time(message: Any, field: str) -> datetime.datetime | None:
    if not message.HasField(field):
        return None
    stamp = getattr(message, field)
    return datetime.datetime.fromtimestamp(stamp.seconds, datetime.timezone.utc).replace(microsecond=stamp.nanos // 1000)


def _struct(struct: Any) -> dict[str, Any]:
    from scalelab import values

    return values.of_struct(struct)
