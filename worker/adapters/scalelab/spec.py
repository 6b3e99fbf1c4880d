"""The specification of a run: RunSpec of proto/scalelab/v1/run_spec.proto, read from its protobuf JSON.

The fields, their defaults and their ranges come from run_parameters.json, which deploy/generate writes from the table in
catalog/run_parameters.def. The native trainer parses specifications by the same rules (worker/trainer/training_spec.cc).
"""
import json
import math
import os
import pathlib
import re

from .errors import RunError

with open(pathlib.Path(__file__).with_name("run_parameters.json"), encoding="utf-8") as _file:
    _TABLES = json.load(_file)
PARAMETERS = _TABLES["parameters"]
ENGINES = {engine["name"]: engine for engine in _TABLES["engines"]}

_KINDS = {"string": "a string", "bool": "true or false", "int32": "an integer", "int64": "an integer", "double": "a number",
          "string_list": "a list of strings", "map": "an object"}


class Spec:
    """Has an attribute for each run parameter. A field that is not in the file has its default. `path` is the path of the file,
    if there is one."""

    def __init__(self, **values):
        self.path = ""
        for parameter in PARAMETERS:
            setattr(self, parameter["name"], parameter["default"])
        for name, value in values.items():
            if not hasattr(self, name):
                raise TypeError(f"there is no run parameter {name}")
            setattr(self, name, value)

    @staticmethod
    def read(path):
        try:
            with open(path, encoding="utf-8") as file:
                spec = Spec.parse(file.read(), path)
        except (OSError, UnicodeDecodeError) as e:
            raise RunError(
                f"cannot read the run's specification {path}: SCALELAB_SPEC must name a readable JSON file ({e})",
                "configuration",
            ) from e
        spec.path = path
        return spec

    @staticmethod
    def parse(text, source):
        """Parses a specification. Numbers may be strings, because protobuf JSON writes 64-bit integers as strings. Ignores
        unknown fields."""
        try:
            fields = json.loads(text)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise RunError(f"{source}: not a JSON object; it must hold a RunSpec as protobuf JSON", "configuration")
        spec = Spec()
        for parameter in PARAMETERS:
            value = fields.get(parameter["name"])
            if value is not None and value != "":
                setattr(spec, parameter["name"], _convert(value, parameter, source))
        spec._complete_batches(source)
        spec._check_lr_milestones(source)
        return spec

    def set_variables(self, **variables):
        """Sets environment variables of this process, except those that the study sets in `env`."""
        os.environ.update({name: value for name, value in variables.items() if name not in self.env})

    def _complete_batches(self, source):
        if self.global_batch == 0 and self.batch_per_rank == 0:
            self.batch_per_rank = _TABLES["default_batch"]
        if self.batch_per_rank == 0:
            self.batch_per_rank = self.global_batch // self.ranks
        if self.global_batch == 0:
            self.global_batch = self.batch_per_rank * self.ranks
        if self.global_batch != self.batch_per_rank * self.ranks or self.global_batch < 1:
            raise RunError(
                f'{source}: field "global_batch" must be the {self.ranks} ranks times batch_per_rank '
                f"({self.batch_per_rank}), it is {self.global_batch}",
                "configuration",
            )

    def _check_lr_milestones(self, source):
        """Checks the same rules as catalog/lr_milestones.cc."""
        milestones = parse_lr_milestones(self.lr_milestones)
        if milestones is None:
            what = 'must be a text with epochs greater than 0 in ascending order without spaces, such as "30,60,80"'
        elif milestones and self.lr_schedule != "step":
            what = f'needs lr_schedule "step", not "{self.lr_schedule}"'
        elif milestones and milestones[-1] >= self.epochs:
            what = f"must end below the number of epochs, which is {self.epochs}"
        else:
            return
        raise RunError(f'{source}: field "lr_milestones" {what}; it is "{self.lr_milestones[:60]}"', "configuration")


def parse_lr_milestones(text):
    """Returns the epochs of a text such as "30,60,80"; [] for an empty text, and None if it has another form."""
    words = text.split(",") if text else []
    if not all(re.fullmatch(r"[0-9]+(\.[0-9]+)?", word) for word in words):
        return None
    epochs = [float(word) for word in words]
    return epochs if all(a < b for a, b in zip([0.0] + epochs, epochs)) else None


def _convert(value, parameter, source):
    kind = parameter["type"]
    converted = _as_kind(value, kind)
    if converted is None:
        _fail(parameter, f"must be {_KINDS[kind]}", value, source)
    if kind in ("int32", "int64", "double") and converted != parameter["default"] and "min" in parameter:
        if not parameter["min"] <= converted <= parameter["max"]:
            _fail(parameter, f"must be between {parameter['min']} and {parameter['max']}", value, source)
    # The engine is not checked here, because training.check compares it with the engine of the adapter.
    if kind == "string" and parameter["name"] != "engine" and converted not in parameter.get("choices", [converted]):
        _fail(parameter, "must be one of " + ", ".join(parameter["choices"]), value, source)
    return converted


def _as_kind(value, kind):
    """Converts `value` to a Python value of this kind. Returns None if it is of another kind."""
    if kind == "string":
        return value if isinstance(value, str) else None
    if kind == "bool":
        return value if isinstance(value, bool) else None
    if kind == "string_list":
        return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else None
    if kind == "map":
        return value if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    wanted = float if kind == "double" else int
    try:
        number = wanted(value)
        exact = int(value) if isinstance(value, str) and wanted is int else float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number == exact else None


def _fail(parameter, what, value, source):
    raise RunError(
        f'{source}: field "{parameter["name"]}" {what}, it is {json.dumps(value)[:100]}', "configuration"
    )
