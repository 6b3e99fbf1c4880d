"""Converts responses of the service to DataFrames."""
from __future__ import annotations

from typing import Any, Iterable

import pandas
from google.protobuf.descriptor import FieldDescriptor

from scalelab import values
from scalelab.study_spec import is_repeated
from scalelab.v1 import result_pb2, run_pb2

NO_POINT = {"run": "", "rank": 0, "step": 0, "time": 0.0, "key": "", "value": 0.0}
_ESTIMATE = result_pb2.Estimate.DESCRIPTOR
_NUMBERS = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_DOUBLE)


def runs(messages: Iterable[Any]) -> pandas.DataFrame:
    messages = list(messages)
    results = sorted({name for run in messages for name in run.summary})
    frame = _frame([_run(run, results) for run in messages], _run(run_pb2.Run(), results))
    for name in ("start_time", "finish_time"):
        frame[name] = pandas.to_datetime(frame[name], utc=True)  # without any time, pandas sets no time zone
    return frame


def points(parts: Iterable[tuple[str, Any]]) -> pandas.DataFrame:
    frames = [
        pandas.DataFrame({"run": run, "rank": part.rank, "step": list(part.step), "time": list(part.time), "key": part.key,
                          "value": list(part.value)})
        for run, part in parts
    ]
    return pandas.concat(frames, ignore_index=True) if frames else _frame([], NO_POINT)


def curve(message: Any) -> pandas.DataFrame:
    rows: list[dict[str, Any]] = []
    for series in message.series:
        rows += [_point(series, point) for point in series.points]
    return _frame(rows, _point(result_pb2.CurveSeries(), result_pb2.CurvePoint()))


def _frame(rows: list[dict[str, Any]], example: dict[str, Any]) -> pandas.DataFrame:
    """Returns a frame of the rows. If there are none, it has the columns of `example` with their types."""
    return pandas.DataFrame(rows) if rows else pandas.DataFrame([example]).iloc[:0].copy()


def _run(run: Any, results: list[str]) -> dict[str, Any]:
    return {
        "run": run.name,
        **_axes(run.key),
        "ranks": run.spec.ranks,
        "repeat": run.repeat,
        "position": run.position,
        "state": run_pb2.Run.State.Name(run.state),
        "cause": run_pb2.Attempt.Cause.Name(run.cause) if run.cause else "",
        "message": run.message,
        "start_time": _time(run, "start_time"),
        "finish_time": _time(run, "finish_time"),
        "attempts": len(run.attempts),
        "global_batch": run.spec.global_batch,
        "batch_per_rank": run.spec.batch_per_rank,
        "seed": run.spec.seed,
        "fingerprint": run.fingerprint,
        **{name: run.summary.get(name, float("nan")) for name in results},
    }


def _point(series: Any, point: Any) -> dict[str, Any]:
    return {
        **_axes(series.key),
        **_fields(point, ""),
        "notes": "; ".join(point.notes),
        "baseline_ranks": series.baseline_ranks,
        "fingerprint": series.fingerprint,
        "listed_order": series.listed_order,
        "series_notes": "; ".join(series.notes),
    }


def _axes(key: Any) -> dict[str, Any]:
    """Returns the values of the axes except `ranks`, which has its own column."""
    return {name: values.cell(value) for name, value in values.of_struct(key).items() if name != "ranks"}


def _fields(message: Any, prefix: str, all_absent: bool = False) -> dict[str, Any]:
    """Returns the fields of a message that are not repeated. An estimate becomes the columns NAME, NAME_low and NAME_high.
    Another message becomes a column NAME_FIELD for each of its fields. Absent numbers are NaN, so that a column of numbers has a
    numeric type even if all are absent; other absent values are None. With `all_absent`, all fields count as absent."""
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        name, value = prefix + field.name, getattr(message, field.name)
        absent = all_absent or (field.has_presence and not message.HasField(field.name))
        if is_repeated(field):
            continue
        if field.message_type is _ESTIMATE:
            row.update(_estimate(name, None if absent else value))
        elif field.message_type is not None:
            row.update(_fields(value, name + "_", absent))
        elif absent:
            row[name] = float("nan") if field.cpp_type in _NUMBERS else None
        elif field.enum_type is not None:
            row[name] = field.enum_type.values_by_number[value].name
        else:
            row[name] = value
    return row


def _estimate(name: str, estimate: Any) -> dict[str, Any]:
    nan = float("nan")
    if estimate is None:
        return {name: nan, name + "_low": nan, name + "_high": nan}
    return {name: estimate.mean, name + "_low": estimate.low if estimate.HasField("low") else nan,
            name + "_high": estimate.high if estimate.HasField("high") else nan}


def _time(run: Any, field: str) -> Any:
    if not run.HasField(field):
        return pandas.NaT
    stamp = getattr(run, field)
    return pandas.Timestamp(stamp.seconds * 1_000_000_000 + stamp.nanos, tz="UTC")
