"""Converts study files and dicts to the specification that the server accepts.

All keys and spellings of `docs/users/write-a-study.md` are accepted. The server checks the values.
"""
from __future__ import annotations

import io
import os
import re
from typing import Any, Mapping

from google.protobuf import struct_pb2

from scalelab.errors import invalid
from scalelab.v1 import run_spec_pb2, study_pb2

StudyLike = Mapping[str, Any]
_OWN_MAPS = ("params", "env")  # mappings whose keys the user chooses
# Smallest values of fields in which 0 means "the default" for the server; a 0 in a study is an error. The client in C++ has the same
# rule (study/file/study_reader.cc).
_LEAST = {"repeats": 1, "repeats.min": 2, "repeats.max": 2, "scaling.global_batch": 1, "scaling.batch_per_rank": 1,
          "lr.reference_batch": 1, "resources.cpus_per_rank": 1, "noise_guard.calibration_ms": 10}
_POSITIVE = ("lr.base", "noise_guard.interval_seconds")
# The limits of study files for a tree of values with its aliases expanded. The client in C++ has the same ones
# (study/file/yaml_document.h).
_MOST_VALUES, _MOST_LEVELS = 500_000, 100
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def read_file(path: str) -> dict[str, Any]:
    """Returns a study file as a dict."""
    return parse(read_text(path), path)


def read_text(path: str) -> str:
    """Returns the text of a study file."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except OSError as error:
        raise invalid(f"{path}: the file cannot be read: {error.strerror}") from None


def parse(text: str, path: str) -> dict[str, Any]:
    """Returns the text of a study file as a dict. Errors name the file `path`."""
    import yaml

    stream = io.StringIO(text)
    stream.name = path  # for the messages of yaml
    try:
        study = yaml.load(stream, Loader=_loader())
    except yaml.YAMLError as error:
        raise invalid(f"{path}: this is not valid YAML: {error}") from None
    if not isinstance(study, dict):
        raise invalid(f"{path}: a study file is a mapping that starts with study: NAME")
    return study


def to_spec(study: StudyLike, directory: str) -> study_pb2.StudySpec:
    """Returns the specification of a study. Paths of data and commands may be relative to `directory`. Raises ScalelabError with
    the path of the first key that is unknown or has a value of the wrong type."""
    spec = study_pb2.StudySpec()
    _Reader(os.path.abspath(directory)).study(study, spec)
    return spec


def seconds_of(value: Any) -> int | None:
    """Returns the seconds of a time limit: 1800, "30m", "1h30m", "00:30:00" or "1-12:00:00"; None for anything else."""
    text = _text(value)
    if re.fullmatch(r"\d+", text):
        return int(text)
    units = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    if text and units:
        return sum(int(number or 0) * unit for number, unit in zip(units.groups(), _UNITS.values()))
    slurm = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::([0-5]?\d))?(?::([0-5]?\d))?", text)
    if not slurm:
        return None
    days, *parts = slurm.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is None and len(numbers) == 2:
        numbers.insert(0, 0)  # MM:SS
    numbers += [0] * (3 - len(numbers))
    return int(days or 0) * 86400 + numbers[0] * 3600 + numbers[1] * 60 + numbers[2]


class _Reader:
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def study(self, value: Any, spec: study_pb2.StudySpec) -> None:
        sections = dict(_mapping(value, ""))
        has_checkpoint = "checkpoint" in sections
        checkpoint = sections.pop("checkpoint", None)
        self.message(sections, "", spec)
        if has_checkpoint:  # later than `fixed`, `matrix` and `zip`, which may have the same keys
            self._checkpoint(checkpoint, spec)

    def message(self, value: Any, path: str, message: Any) -> None:
        fields = message.DESCRIPTOR.fields_by_name
        for key, item in _mapping(value, path).items():
            where = f"{path}.{key}" if path else str(key)
            if where == "resources.time":
                message.time_seconds = self._seconds(item)
                continue
            if where == "repeats" and isinstance(item, Mapping):
                self._adaptive_repeats(item, message.adaptive_repeats)
                continue
            if key not in fields or key in ("time_seconds", "adaptive_repeats"):
                known = sorted([*fields, *([] if path else ["checkpoint"])])
                raise invalid(f"{where}: unknown key '{key}'; known: {', '.join(known).replace('time_seconds', 'time')}")
            self._field(item, where, message, fields[key])

    def _field(self, value: Any, path: str, message: Any, field: Any) -> None:
        # The word `none` is for users whose configuration has a default for this section.
        if value is None or (path == "notify" and value == "none"):
            return
        if path == "retry.on" and not value:
            raise invalid("retry.on: has no causes; to disable retries, write max: 0")
        if path == "matrix":
            self._axes(value, path, message.matrix)
        elif path == "zip":
            for i, group in enumerate(_list(value, path)):
                self._axes(group, f"{path}[{i}]", message.zip.add().axes)
        elif field.message_type is None:
            self._scalars(value, path, message, field)
        elif field.message_type.GetOptions().map_entry:
            getattr(message, field.name).update({str(key): _text(item) for key, item in _mapping(value, path).items()})
        elif is_repeated(field):
            for i, item in enumerate(_list(value, path)):
                self._one(item, f"{path}[{i}]", getattr(message, field.name).add())
        else:
            child = getattr(message, field.name)
            child.SetInParent()
            self._one(value, path, child)

    def _one(self, value: Any, path: str, message: Any) -> None:
        if isinstance(message, struct_pb2.Struct):
            for key, item in _flat(value, path).items():
                message.fields[key].CopyFrom(self._value(item, key))
        else:
            self.message(value, path, message)

    def _scalars(self, value: Any, path: str, message: Any, field: Any) -> None:
        if is_repeated(field):
            getattr(message, field.name).extend(self._scalar(item, f"{path}[{i}]", field) for i, item in enumerate(_list(value, path)))
        else:
            setattr(message, field.name, self._scalar(value, path, field))

    @staticmethod
    def _scalar(value: Any, path: str, field: Any) -> Any:
        if field.enum_type is not None:
            words = {_word(entry.name): entry.number for entry in field.enum_type.values if entry.number}
            if str(value) not in words:
                raise invalid(f"{path}: '{value}' is none of {', '.join(words)}")
            return words[str(value)]
        kind = field.cpp_type
        if kind == field.CPPTYPE_STRING:
            return _text(value)
        good = isinstance(value, bool) if kind == field.CPPTYPE_BOOL else isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good:
            expected = "true or false" if kind == field.CPPTYPE_BOOL else "a number"
            raise invalid(f"{path}: must be {expected}, not {value!r}")
        if kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64) and value != int(value):
            raise invalid(f"{path}: must be a whole number, not {value!r}")
        if value == 0 and path in _LEAST:
            raise invalid(f"{path}: must be at least {_LEAST[path]}, not 0")
        if value == 0 and path in _POSITIVE:
            raise invalid(f"{path}: must be more than 0")
        return int(value) if kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64) else value

    def _axes(self, value: Any, path: str, axes: Any) -> None:
        for key, items in _flat(value, path).items():
            if isinstance(items, Mapping) and list(items) == ["pow2"]:
                items = _powers(items["pow2"], f"{path}.{key}")
            if not isinstance(items, (list, tuple)):
                raise invalid(f"{path}.{key}: must be a list, not {items!r}; put one value for all cells under fixed")
            axis = axes.add(key=key)
            for item in items:
                axis.values.add().CopyFrom(self._value(item, key))

    def _value(self, value: Any, key: str) -> struct_pb2.Value:
        if value is None:
            return struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)
        is_text = _is_text(key)
        if isinstance(value, bool) and not is_text:
            return struct_pb2.Value(bool_value=value)
        if isinstance(value, (list, tuple)):
            return struct_pb2.Value(list_value=struct_pb2.ListValue(values=[self._value(item, key) for item in value]))
        if isinstance(value, Mapping):
            fields = {str(name): self._value(item, key) for name, item in value.items()}
            return struct_pb2.Value(struct_value=struct_pb2.Struct(fields=fields))
        if isinstance(value, str) or is_text:
            text = _text(value)
            beside = key == "data_dir" or (key == "command" and text.startswith(("./", "../")))
            return struct_pb2.Value(string_value=os.path.normpath(os.path.join(self._directory, text)) if beside and text else text)
        if key.startswith("params.") and isinstance(value, int) and (abs(value) > 2**1023 or int(float(value)) != value):
            raise invalid(f"{key}: {value} is a whole number that cannot be stored exactly; write it as text")
        return struct_pb2.Value(number_value=float(value))

    def _adaptive_repeats(self, value: Mapping[Any, Any], message: Any) -> None:
        """Reads {min: 2, max: 10, until: {half_width: 2%}}."""
        until = dict(_mapping(value.get("until"), "repeats.until"))
        width = until.pop("half_width", None)
        if until or width is None:
            raise invalid("repeats.until: must be {half_width: 2%} or another share")
        share = re.fullmatch(r"([0-9.]+)%", str(width))
        message.half_width = float(share.group(1)) * 0.01 if share else self._scalar(width, "repeats.until.half_width",
                                                                                  message.DESCRIPTOR.fields_by_name["half_width"])
        self.message({key: item for key, item in value.items() if key != "until"}, "repeats", message)

    @staticmethod
    def _checkpoint(value: Any, spec: study_pb2.StudySpec) -> None:
        """Reads {every: 10m, keep: 2} into keys of `fixed`."""
        if value is not None and not isinstance(value, Mapping):
            raise invalid(f"checkpoint: must be a mapping such as {{every: 10m, keep: 2}}, not {value!r}")
        section = _mapping(value, "checkpoint")
        if "every" not in section:
            raise invalid("checkpoint: has no every; add every: 10m (a time) or every: 500 (a number of steps)")
        axes: list[tuple[str, Any]] = [("matrix", spec.matrix), *((f"zip[{i}]", group.axes) for i, group in enumerate(spec.zip))]
        for key, item in section.items():
            if key == "every":
                name, number = _every(item)
            elif key == "keep":
                if not isinstance(item, int) or isinstance(item, bool) or item < 1:
                    raise invalid(f"checkpoint.keep: must be a whole number, at least 1, not {item!r}")
                name, number = "checkpoint_keep", float(item)
            else:
                raise invalid(f"checkpoint.{key}: unknown key '{key}'; known: every, keep")
            places = ["fixed"] if name in spec.fixed.fields else []
            places += [place for place, group in axes if any(axis.key == name for axis in group)]
            if places:
                raise invalid(f"checkpoint.{key}: is also set as {places[0]}.{name}; keep one")
            spec.fixed.fields[name].number_value = number

    @staticmethod
    def _seconds(value: Any) -> int:
        seconds = seconds_of(value)
        if not seconds:
            raise invalid(f'resources.time: must be a time limit such as "00:30:00", 30m or 1800 (seconds), not {value!r}')
        return seconds


def _is_text(key: str) -> bool:
    """Returns whether all scalars of a key are text, as for environment variables: there 1.10 is not the number 1.1. The client in
    C++ has the same rule (study/file/grid_reader.cc)."""
    field = run_spec_pb2.RunSpec.DESCRIPTOR.fields_by_name.get(key)
    return key.startswith("env.") or (field is not None and field.cpp_type == field.CPPTYPE_STRING)


def _every(value: Any) -> tuple[str, float]:
    """Returns the key of `fixed` and its value for `every` of the section `checkpoint`: a number of steps or a time."""
    text = _text(value)
    steps = re.fullmatch(r"[-+]?\d+", text)
    number = int(text) if steps else seconds_of(value)
    if number is None:
        raise invalid(f'checkpoint.every: must be a time such as 10m or "00:10:00", or a number of steps such as 500, not {value!r}')
    if number < 1:
        raise invalid(f"checkpoint.every: must be at least {'1 step' if steps else '1s'} (to write no checkpoints, remove checkpoint), "
                      f"not {value!r}")
    return ("checkpoint_every_steps", float(number)) if steps else ("checkpoint_every_minutes", number / 60)


def _mapping(value: Any, path: str) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise invalid(f"{path or 'a study'}: must be a mapping of keys to values, not {value!r}")
    return value


def _flat(value: Any, path: str) -> dict[str, Any]:
    """Flattens a mapping: `params: {dropout: 0.1}` becomes `params.dropout: 0.1`."""
    flat: dict[str, Any] = {}
    for key, item in _mapping(value, path).items():
        own = _mapping(item, f"{path}.{key}") if key in _OWN_MAPS else None
        entries = [(str(key), item)] if own is None else [(f"{key}.{name}", one) for name, one in own.items()]
        for name, one in entries:
            if name in flat:
                raise invalid(f"{path}.{name}: duplicate key '{name}'; keep one")
            flat[name] = one
    return flat


def _word(enumerator: str) -> str:
    """Returns the word of study files: STRONG is "strong", EXIT_STATUS is "exit_status", but PER_RUN is "per-run"."""
    word = enumerator.lower()
    return "per-run" if word == "per_run" else word


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise invalid(f"{path}: must be a list, not {value!r}")
    return list(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(getattr(value, "text", value))


def is_repeated(field: Any) -> bool:
    """Returns whether a field of a message is repeated."""
    found = getattr(field, "is_repeated", None)  # in new versions of protobuf, which lack `label`
    return bool(found if found is not None else field.label == field.LABEL_REPEATED)


def _powers(ends: Any, path: str) -> list[int]:
    if not isinstance(ends, (list, tuple)) or len(ends) != 2 or not 1 <= ends[0] <= ends[1]:
        raise invalid(f"{path}: pow2 must be a list of two whole numbers, the first at least 1 and not above the second")
    return [1 << i for i in range(41) if ends[0] <= 1 << i <= ends[1]]


def _loader() -> Any:
    """Returns a loader for YAML 1.2, which the command-line client uses too. PyYAML implements YAML 1.1, in which the key `on`
    means true and 1:30:00 is a number."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, Any] = {}

        def __init__(self, stream: Any) -> None:
            super().__init__(stream)
            self._open = 0  # the number of nodes that contain the current node
            self._sizes: dict[Any, tuple[int, int]] = {}  # of each complete node: the numbers of its values and levels

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()

            def check(good: bool, problem: str) -> None:
                if not good:
                    raise yaml.composer.ComposerError(None, None, problem, event.start_mark)

            check(self._open < _MOST_LEVELS, "values are nested too deeply")
            self._open += 1
            node: Any = super().compose_node(parent, index)
            self._open -= 1
            if isinstance(event, yaml.AliasEvent):
                check(node in self._sizes, "an alias refers to a node that contains it")
                return node
            parts = [] if isinstance(node, yaml.ScalarNode) else node.value
            if isinstance(node, yaml.MappingNode):
                parts = [part for pair in parts for part in pair]
            sizes = [self._sizes[part] for part in parts]
            values, levels = 1 + sum(size[0] for size in sizes), 1 + max((size[1] for size in sizes), default=0)
            check(values <= _MOST_VALUES, f"more than {_MOST_VALUES:,} values")
            check(levels <= _MOST_LEVELS, "values are nested too deeply")
            self._sizes[node] = values, levels
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: dict[str, int] = {}
            for key, _ in node.value:
                if str(key.value) in seen:
                    problem = f"duplicate key '{key.value}' (first on line {seen[str(key.value)]})"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen[str(key.value)] = key.start_mark.line + 1
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
    number = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    Loader.add_constructor("tag:yaml.org,2002:float", _construct_number)
    return Loader


class _Whole(int):
    """An integer with its text in the file. The text is used where a string is expected: `command: [train, --lr, 1e-3]`."""

    text: str


class _Float(float):
    """A floating-point number with its text in the file, like _Whole."""

    text: str


def _construct_number(loader: Any, node: Any) -> _Whole | _Float:
    text = str(node.value)
    number: Any = _Whole(text) if re.fullmatch(r"[-+]?[0-9]+", text) else _Float(re.sub(r"\.(inf|nan)", r"\1", text.lower()))
    number.text = text
    return number  # type: ignore[no-any-return]
