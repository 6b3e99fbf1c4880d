"""Converts responses of the service to DataFrames."""
from __future__ import annotations

from typing import Any, Iterable

import pandas

from scalelab import values
from scalelab.study_spec import is_repeated
from scalelab.v1 import result_pb2, run_pb2

_POINT_COLUMNS = ["run", "rank", "step", "time", "key", "value"]
_ESTIMATE = result_pb2.Estimate.DESCRIPTOR


def runs(messages: Iterable[Any]) -> pandas.DataFrame:
    rows: list[dict[str, Any]] = []
    messages = list(messages)
    results = sorted({name for run in messages for name in run.summary})
    for run in messages:
        axes = {key: values.cell(value) for key, value in values.of_struct(run.key).items() if key != "ranks"}
        row = {
            "run": run.name,
            **axes,
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
        }
        rows.append({**row, **{name: run.summary.get(name, float("nan")) for name in results}})
    return pandas.DataFrame(rows)


def points(parts: Iterable[tuple[str, Any]]) -> pandas.DataFrame:
    frames = [
        pandas.DataFrame({"run": run, "rank": part.rank, "step": list(part.step), "time": list(part.time), "key": part.key,
                          "value": list(part.value)})
        for run, part in parts
    ]
    return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame(columns=_POINT_COLUMNS)


def curve(message: Any) -> pandas.DataFrame:
    rows: list[dict[str, Any]] = []
    for series in message.series:
        key = {name: values.cell(value) for name, value in values.of_struct(series.key).items() if name != "ranks"}
        of_series = {"baseline_ranks": series.baseline_ranks, "fingerprint": series.fingerprint, "listed_order": series.listed_order,
                     "series_notes": "; ".join(series.notes)}
        rows += [{**key, **_point(point), **of_series} for point in series.points]
    return pandas.DataFrame(rows)


def _point(point: Any) -> dict[str, Any]:
    return {**_fields(point, ""), "notes": "; ".join(point.notes)}


def _fields(message: Any, prefix: str) -> dict[str, Any]:
    """Returns the fields of a message that are not repeated. An estimate becomes the columns NAME, NAME_low and NAME_high.
    Another message becomes a column NAME_FIELD for each of its fields. Absent values are None or NaN."""
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        name, value = prefix + field.name, getattr(message, field.name)
        absent = field.has_presence and not message.HasField(field.name)
        if is_repeated(field):
            continue
        if field.message_type is _ESTIMATE:
            row.update(_estimate(name, None if absent else value))
        elif field.message_type is not None:
            row.update({key: None if absent else item for key, item in _fields(value, name + "_").items()})
        elif field.enum_type is not None:
            row[name] = None if absent else field.enum_type.values_by_number[value].name
        else:
            row[name] = None if absent else value
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
