"""What to train: RunSpec of proto/scalelab/v1/run.proto, read from its protobuf JSON as worker/trainer/training_spec.cc does."""
import dataclasses
import json
import math

from .errors import RunError


@dataclasses.dataclass
class Spec:
    """Meaning and units of each field stand in run.proto; a field that the file lacks keeps the value given here."""

    path: str = ""  # of the file; no field of it
    engine: str = ""
    model: str = "resnet20"
    dataset: str = "synthetic"
    data_dir: str = ""
    precision: str = "fp32"
    backend: str = "auto"
    device: str = "auto"
    ranks: int = 1
    epochs: int = 1
    max_steps: int = 0
    global_batch: int = 0  # 0: batch_per_rank * ranks
    batch_per_rank: int = 0  # 0: global_batch / ranks; both 0: 128
    learning_rate: float = 0.1
    warmup_start_rate: float = 0.0
    warmup_epochs: float = 0.0
    lr_schedule: str = "constant"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    decay_norm: bool = True
    augment: bool = True
    batch_norm: str = "train"
    seed: int = 0
    warmup_steps: int = 0
    evaluate: bool = False
    target_accuracy: float = 0.0
    cpus_per_rank: int = 1
    gpus_per_rank: int = 0
    memory_format: str = "auto"
    bucket_cap_mib: int = 25
    train_samples: int = 0
    accumulation_steps: int = 1
    first_bucket_cap_mib: int = 1
    find_unused_parameters: bool = False
    static_graph: bool = False
    fusion_threshold_mib: int = 128
    cycle_time_ms: float = 1.0
    cache_capacity: int = 1024
    gradient_compression: str = "none"
    autotune: bool = False
    stall_warning_s: float = 60.0
    timeline: bool = False
    all_reduce: str = "library"
    image_size: int = 0
    classes: int = 0
    last_batch: str = "drop"
    cuda_graph: bool = False
    save_parameters: bool = False
    comm_timeout_s: float = 600.0  # of one operation between ranks

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
        """Numbers may be strings, as protobuf JSON writes 64-bit integers; unknown fields are passed over."""
        try:
            fields = json.loads(text)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise RunError(f"{source}: not a JSON object; it must hold a RunSpec as protobuf JSON", "configuration")
        spec = Spec()
        for field in dataclasses.fields(Spec):
            value = fields.get(field.name)
            if field.name != "path" and value is not None and value != "":
                setattr(spec, field.name, _convert(value, field, source))
        spec._complete_batches(source)
        return spec

    def _complete_batches(self, source):
        if self.global_batch == 0 and self.batch_per_rank == 0:
            self.batch_per_rank = 128
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
        self.accumulation_steps = max(1, self.accumulation_steps)


def _convert(value, field, source):
    wanted = type(field.default)
    if wanted is str and isinstance(value, str):
        return value
    if wanted is bool and isinstance(value, bool):
        return value
    if wanted in (int, float) and not isinstance(value, bool):
        try:
            number = wanted(value)
            if math.isfinite(number) and number == (int(value) if isinstance(value, str) and wanted is int else float(value)):
                return number
        except (TypeError, ValueError):
            pass
    kind = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}[wanted]
    raise RunError(f'{source}: field "{field.name}" must be {kind}, it is {json.dumps(value)[:100]}', "configuration")
