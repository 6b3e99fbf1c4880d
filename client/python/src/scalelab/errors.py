"""Errors of the service, and their details."""
from __future__ import annotations

import dataclasses
from typing import Iterator, Sequence


@dataclasses.dataclass(frozen=True)
class Violation:
    """An invalid field of a study: its path, such as "matrix.engine[1]", and one sentence that describes the error."""

    field: str
    description: str


class ScalelabError(Exception):
    """An error of a call that the service refused or did not answer, or of an invalid study.

    Attributes:
        code: name of a gRPC status, such as "NOT_FOUND" or "UNAVAILABLE".
        reason: the reason in upper case, such as "INVALID_FIELDS"; empty if the service did not give one.
        violations: the invalid fields of a study.
    """

    def __init__(self, message: str, code: str, reason: str = "", violations: Sequence[Violation] = ()) -> None:
        lines = [message] if len(violations) < 2 else [f"{v.field}: {v.description}" if v.field else v.description for v in violations]
        super().__init__("\n".join(lines))
        self.code, self.reason, self.violations = code, reason, tuple(violations)


def invalid(message: str) -> ScalelabError:
    """Returns an error for an invalid argument."""
    return ScalelabError(message, "INVALID_ARGUMENT")


def parse_details(status: bytes) -> tuple[str, list[Violation]]:
    """Returns the reason and the violations in a serialized google.rpc.Status.

    Parses the few fields without generated classes, because classes of google.rpc could conflict with those of other packages.
    """
    reason, violations = "", []
    for detail in _fields(status).get(3, []):
        any_fields = _fields(detail)
        kind = _text(any_fields, 1).rsplit(".", 1)[-1]
        value = _fields(b"".join(any_fields.get(2, [])))
        if kind == "ErrorInfo":
            reason = _text(value, 1)
        elif kind == "BadRequest":
            entries = (_fields(entry) for entry in value.get(1, []))
            violations += [Violation(_text(entry, 1), _text(entry, 2)) for entry in entries]
    return reason, violations


def _text(fields: dict[int, list[bytes]], number: int) -> str:
    return b"".join(fields.get(number, [])).decode("utf-8", "replace")


def _fields(message: bytes) -> dict[int, list[bytes]]:
    """Returns the length-delimited fields of a message by number. Skips fields of other types."""
    found: dict[int, list[bytes]] = {}
    for number, value in _entries(message):
        found.setdefault(number, []).append(value)
    return found


def _entries(message: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 2:
            size, at = _varint(message, at)
            yield tag >> 3, message[at : at + size]
            at += size
        elif kind == 0:
            _, at = _varint(message, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            return


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            break
    return value, at
