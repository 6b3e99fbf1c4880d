"""Writes the data of a study in the formats that the command-line client does not support: Parquet and TensorBoard."""
from __future__ import annotations

import itertools
import math
import os
import struct
import time
from typing import Any, Iterable

from scalelab.client import Client, StudyName

FORMATS = ("parquet", "tensorboard")


def export(client: Client, study: StudyName, format: str, directory: str | os.PathLike[str]) -> list[str]:
    """Creates `directory` and writes a study into it. Replaces existing files. Returns the paths of the files.

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
    paths = []
    for name, frame in [("runs", client.runs(study)), ("metrics", client.metrics(study)), ("curve", client.curve(study))]:
        path = os.path.join(directory, name + ".parquet")
        frame.to_parquet(path + ".part", index=False)
        os.replace(path + ".part", path)
        paths.append(path)
    return paths


def _tensorboard(client: Client, study: StudyName, directory: str) -> list[str]:
    paths = []
    for run, parts in itertools.groupby(client.study_points(study, rank=0), key=lambda pair: pair[0]):
        points = [(stamp, step, part.key, value)
                  for _, part in parts
                  for stamp, step, value in zip(part.time, part.step, part.value)]
        folder = os.path.join(directory, "run-" + run.rsplit("/", 1)[-1])
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "events.out.tfevents.scalelab")
        with open(path + ".part", "wb") as file:
            file.writelines(_records(sorted(points)))
        os.replace(path + ".part", path)
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
