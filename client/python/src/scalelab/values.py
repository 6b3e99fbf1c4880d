"""Converts values of study keys from messages of the API."""
from __future__ import annotations

from typing import Any

_FIRST = ["engine", "model", "dataset", "precision", "backend"]


def of_struct(struct: Any) -> dict[str, Any]:
    """Returns a google.protobuf.Struct as a dict, in the order in which all clients show axes. Integral numbers become int."""
    names = sorted(struct.fields, key=lambda name: (name == "ranks", _FIRST.index(name) if name in _FIRST else len(_FIRST), name))
    return {name: of_value(struct.fields[name]) for name in names}


def of_value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return [of_value(item) for item in value.list_value.values]
    if kind == "struct_value":
        return of_struct(value.struct_value)
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    return None if kind in (None, "null_value") else getattr(value, kind)


def cell(value: Any) -> Any:
    """Returns a value for a table cell. Lists and mappings become text, as in the tables of the command-line client."""
    if isinstance(value, list):
        return f"[{', '.join(str(cell(item)) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{' '.join(f'{key}={cell(item)}' for key, item in value.items())}}}"
    return value
