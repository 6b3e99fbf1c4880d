"""Reads and writes safetensors files (https://github.com/huggingface/safetensors) with the types that numpy supports.

A file consists of 8 bytes with the length of a JSON header (little-endian), the header (dtype, shape and offsets of each tensor), and
the data.
"""
import json
import os
import struct

import numpy as np

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U32": "<u4", "I16": "<i2", "I8": "i1",
          "U8": "u1", "BOOL": "?"}
_NAMES = {np.dtype(code): name for name, code in _TYPES.items()}


def parse_safetensors(data):
    """Returns name -> array, in the order of the header. Raises ValueError for invalid data."""
    if len(data) < 8:
        raise ValueError(f"{len(data)} bytes are too few for safetensors")
    length = struct.unpack("<Q", data[:8])[0]
    if length > len(data) - 8:
        raise ValueError(f"the header of {length} bytes does not fit into {len(data)} bytes")
    header = json.loads(data[8 : 8 + length])
    body = memoryview(data)[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        flat = np.frombuffer(body[first:end], _TYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"]).copy()
    return tensors


def read_safetensors(path):
    with open(path, "rb") as file:
        return parse_safetensors(file.read())


def write_safetensors(path, tensors):
    """Creates or replaces the file atomically."""
    unfinished = f"{path}.{os.getpid()}.new"
    with open(unfinished, "wb") as file:
        write_tensors(file, tensors)
    os.rename(unfinished, path)


def write_tensors(file, tensors):
    """Writes name -> array to a binary file."""
    header, offset = {}, 0
    arrays = {name: np.ascontiguousarray(array).reshape(np.shape(array)) for name, array in tensors.items()}
    for name, array in arrays.items():
        end = offset + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for array in arrays.values():
        file.write(array.tobytes())
