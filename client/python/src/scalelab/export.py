"""Writes the data of a study in the formats that the command-line client does not support: Parquet and TensorBoard."""
from __future__ import annotations

import contextlib
import itertools
import math
import numbers
import os
import struct
import time
from typing import Any, Iterable, Iterator

from scalelab.client import Client, StudyName

FORMATS = ("parquet", "tensorboard")
_ROWS = 1 << 18  # the least number of metric points in a row group of Parquet, except in the last one


def export(client: Client, study: StudyName, format: str, directory: str | os.PathLike[str]) -> list[str]:
    """Creates `directory` and writes a study into it. Replaces existing files. Returns the paths of the files. Raises OSError if a
    file cannot be written; then no more points are read from the server.

    parquet: runs.parquet, metrics.parquet and curve.parquet with the columns of `runs`, `metrics` and `curve` of Client.
    tensorboard: a directory for each run, "run-12", with all metrics of rank 0 by step.
    """
    study = client.study(study)  # a name may mean another study later
    os.makedirs(directory, exist_ok=True)
    if format == "parquet":
        return _parquet(client, study, os.fspath(directory))
    if format == "tensorboard":
        return _tensorboard(client, study, os.fspath(directory))
    raise ValueError(f"'{format}' is none of {', '.join(FORMATS)}; `scalelab study export` writes csv, json and sqlite")


def _parquet(client: Client, study: StudyName, directory: str) -> list[str]:
    runs, metrics, curve = paths = [os.path.join(directory, name + ".parquet") for name in ("runs", "metrics", "curve")]
    _write_frame(client.runs(study), runs)
    with _replacing(metrics) as part:
        _write_points(client.study_points(study), part)
    _write_frame(client.curve(study), curve)
    return paths


def _write_frame(frame: Any, path: str) -> None:
    with _replacing(path) as part:
        _with_one_type(frame).to_parquet(part, index=False, engine="pyarrow")


def _with_one_type(frame: Any) -> Any:
    """Returns the frame with text in place of the values of each column that has values of several types, because a column of
    Parquet has one type. Such a column is an axis whose values are, for example, `auto` and 0.5."""
    mixed = {}
    for name, dtype in frame.dtypes.items():
        if dtype.kind != "O":
            continue
        values = frame[name].dropna()
        kinds = {next((kind for kind in (bool, str, numbers.Number) if isinstance(value, kind)), type(value)) for value in values}
        if len(kinds) > 1:
            mixed[name] = frame[name].where(frame[name].isna(), [_text(value) for value in frame[name]])
    return frame.assign(**mixed)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _write_points(parts: Iterator[tuple[str, Any]], path: str) -> None:
    """Writes points while they are read, so that an error ends the reading, and so that only some of the points are in memory."""
    import pandas
    import pyarrow
    from pyarrow import parquet

    from scalelab import frames

    schema = pyarrow.Schema.from_pandas(pandas.DataFrame([frames.NO_POINT]), preserve_index=False)
    with parquet.ParquetWriter(path, schema) as writer:
        for group in _groups(parts):
            writer.write_table(pyarrow.Table.from_pandas(frames.points(group), schema, preserve_index=False))


def _groups(parts: Iterable[tuple[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
    """Returns the parts in groups of at least _ROWS points; the last group may have fewer."""
    group: list[tuple[str, Any]] = []
    rows = 0
    for run, part in parts:
        group.append((run, part))
        rows += len(part.value)
        if rows >= _ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[str]:
    """Returns a context with the name of a new file, which replaces the file `path` at the end. After an exception, the new file is
    removed."""
    part = path + ".part"
    try:
        yield part
        os.replace(part, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.remove(part)
        if not isinstance(error, OSError):
            raise
        # The texts of pyarrow and of Python do not always name the file.
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(f"cannot write {path}: {reason}; check its directory, your permissions and the free space") from error


def _tensorboard(client: Client, study: StudyName, directory: str) -> list[str]:
    paths = []
    for run, parts in itertools.groupby(client.study_points(study, rank=0), key=lambda pair: pair[0]):
        points = [(stamp, step, part.key, value)
                  for _, part in parts
                  for stamp, step, value in zip(part.time, part.step, part.value)]
        folder = os.path.join(directory, "run-" + run.rsplit("/", 1)[-1])
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "events.out.tfevents.scalelab")
        with _replacing(path) as part, open(part, "wb") as file:
            file.writelines(_records(sorted(points)))
        paths.append(path)
    return paths


def _records(points: Iterable[tuple[float, int, str, float]]) -> Iterable[bytes]:
    """Returns the parts of a TensorBoard event file: records of tensorflow.Event, each with its length and checksums."""
    yield _record(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))
    for stamp, step, key, value in points:
        scalar = _bytes(1, key.encode()) + b"\x15" + _float(value)  # Summary.Value: tag, simple_value
        # The step of a result is -1. TensorBoard does not show negative steps.
        yield _record(_double(1, stamp) + b"\x10" + _varint(max(step, 0)) + _bytes(5, _bytes(1, scalar)))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_crc(length)) + data + struct.pack("<I", _masked_crc(data))


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _float(value: float) -> bytes:
    """Returns a number in single precision. A number that is too large for it becomes infinite."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    """Returns the masked CRC-32C, the checksum in TensorFlow's records."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def describe(paths: list[str]) -> str:
    """Returns one line about the written files."""
    size: Any = sum(os.path.getsize(path) for path in paths)
    return f"{len(paths)} files, {size / 1e6:.1f} MB"
