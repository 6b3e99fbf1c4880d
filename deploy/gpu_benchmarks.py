"""Runs the benchmarks of deploy/gpu-check: the native trainer, and PyTorch eager and compiled. Writes report.json and report.md.

Each benchmark is one run of scalelab-trainer or of an adapter, as the worker starts it. The most important benchmarks come first;
those that do not fit into the time are listed as left out. The report is written again after each benchmark, so that a failure
or the end of the time does not lose the earlier results. Runs with any Python 3.8 that has PyTorch and numpy.
"""
import argparse
import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
ADAPTERS = os.path.join(HERE, "..", "worker", "adapters")
LIMIT = {False: 1200, True: 330}  # seconds for all benchmarks, if --seconds allows that
ALL_REDUCE = 30  # seconds that NCCL's all-reduce and the report need after the benchmarks
LONGEST = 240  # seconds of one benchmark
SHORTEST = 25  # seconds that must be left for another one

# Name in the report -> engine and options. The first MODES_OF_TARGETS are those that the targets compare.
MODES = {
    "native, CUDA graph": ("native/ddp", {"cuda_graph": True}),
    "PyTorch, compiled, CUDA graphs": ("pytorch/ddp", {"compile": True, "cuda_graph": True}),
    "PyTorch, eager": ("pytorch/ddp", {}),
    "native, eager": ("native/ddp", {}),
    "PyTorch, compiled": ("pytorch/ddp", {"compile": True}),
}
MODES_OF_TARGETS = 3
SMALL = {"dataset": "synthetic", "image_size": 32, "classes": 10, "train_samples": "50000", "warmup_steps": 30, "max_steps": "330"}
LARGE = {"dataset": "synthetic", "image_size": 224, "classes": 1000, "warmup_steps": 10, "max_steps": "70"}


def benchmarks(quick, gpus):
    """Returns (title, mode, engine, spec, ranks) of all benchmarks, the most important ones first."""
    half, rest = ["amp-bf16"], ["amp-fp16", "tf32", "fp32"]
    groups = [("resnet50", 128, LARGE, half), ("resnet44", 128, SMALL, half)]
    if not quick:
        groups += [("resnet20", 128, SMALL, half), ("resnet44", 512, SMALL, half), ("resnet20", 512, SMALL, half)]
        groups += [("resnet50", 128, LARGE, rest), ("resnet44", 128, SMALL, rest)]
    found = []
    ranks = gpus if gpus > 1 else 1
    for mode in ("native, eager", "PyTorch, eager") if gpus > 1 else ("native, eager",):
        engine, more = MODES[mode]
        spec = {"model": "resnet50", "precision": "amp-bf16", "backend": "nccl", **LARGE, **more}
        found.append((f"resnet50, batch 128 x {ranks}, amp-bf16, nccl", mode, engine, _spec(spec, 128, ranks), ranks))

    def singles(groups, modes):
        for model, batch, sizes, precisions in groups:
            for precision in precisions:
                for mode in modes:
                    engine, more = MODES[mode]
                    spec = {"model": model, "precision": precision, **sizes, **more}
                    yield f"{model}, batch {batch}, {precision}", mode, engine, _spec(spec, batch, 1), 1

    modes = list(MODES)
    first, others = modes[:MODES_OF_TARGETS], modes[MODES_OF_TARGETS:]
    return [*singles(groups[:2], first), *found, *singles(groups[:2], others), *singles(groups[2:], modes)]


def _spec(spec, batch, ranks):
    return {
        "ranks": ranks, "global_batch": batch * ranks, "batch_per_rank": batch, "epochs": 1000, "learning_rate": 0.01, "seed": "1",
        "device": "cuda", "gpus_per_rank": 1, "cpus_per_rank": max(1, (os.cpu_count() or 1) // max(ranks, 1)), **spec,
    }


class Meter:
    """Reads the energy counters of the first `gpus` GPUs of this process ten times a second, if NVML is there."""

    def __init__(self, gpus, library="libnvidia-ml.so.1"):
        self.readings, self._gpus, self._stop = [], [], threading.Event()
        try:
            self._nvml = ctypes.CDLL(library)
            if self._nvml.nvmlInit_v2() != 0:
                return
            for index in _nvml_indices(gpus):
                gpu = ctypes.c_void_p()
                if self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu)) != 0:
                    self._gpus = []
                    return
                self._gpus.append(gpu)
        except (OSError, AttributeError, ValueError):
            self._gpus = []

    def __enter__(self):
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        last = False  # after a stop request, the counters are read once more
        while self._gpus and not last:
            last = self._stop.is_set()
            joules = 0.0
            for gpu in self._gpus:
                counter = ctypes.c_ulonglong()
                if self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu, ctypes.byref(counter)) != 0:
                    return
                joules += counter.value / 1000
            self.readings.append((time.time(), joules))
            self._stop.wait(0.1)


def _nvml_indices(gpus):
    """Returns NVML's numbers of the first `gpus` GPUs of this process. NVML ignores CUDA_VISIBLE_DEVICES. Raises ValueError if this
    variable names GPUs by other means than their numbers."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return range(gpus) if visible is None else [int(number) for number in visible.split(",")][:gpus]


def joules_between(readings, begin, end):
    """Returns the energy from `begin` to `end`, interpolated linearly between readings; None if the readings do not cover this time."""
    def at(moment):
        for (before, low), (after, high) in zip(readings, readings[1:]):
            if before <= moment <= after:
                return low + (high - low) * (moment - before) / (after - before)
        return None

    first, last = at(begin), at(end)
    return None if first is None or last is None else last - first


def energy_of(events, warmup, readings):
    """Returns the joules of the measured steps; None if they are not known. The window is that of docs/users/metrics.md."""
    steps = [e for e in events if e["event"] == "step"][warmup:]
    parts = [joules_between(readings, e["time"] - e["metrics"]["step/total_s"], e["time"]) for e in steps]
    return None if not parts or None in parts else sum(parts)


def run(trainer, engine, spec, ranks, timeout, adapters=ADAPTERS):
    """Runs one benchmark. Returns its figures, or {"error": why}."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as directory:
        with open(os.path.join(directory, "spec.json"), "w", encoding="utf-8") as file:
            json.dump({"engine": engine, **spec}, file)
        row = _row_of(engine)
        argv = [trainer] if row["program"] == "trainer" else [sys.executable, "-B", os.path.join(adapters, row["script"])]
        with open(os.path.join(directory, "errors"), "w+", encoding="utf-8", errors="replace") as errors, Meter(ranks) as meter:
            running = [subprocess.Popen(argv, env=_environment(directory, trainer, rank, ranks), stdout=errors, stderr=errors)
                       for rank in range(ranks)]
            late = _wait(running, time.monotonic() + timeout)
            errors.seek(0)
            tail = errors.read()[-500:].strip()
        events = _events(os.path.join(directory, "events-0.jsonl"))
    if late:
        return {"error": f"it took longer than {timeout:.0f} s", "late": True}
    finish = next((e["metrics"] for e in events if e["event"] == "finish"), None)
    if finish is None:
        return {"error": next((e["message"] for e in events if e["event"] == "error"), tail)}
    figures = {name: finish[f"run/{name}"] for name in ("throughput", "step_seconds")}
    figures.update({name: finish[f"run/{name}"] for name in ("device_memory_bytes", "comm_share") if f"run/{name}" in finish})
    joules = energy_of(events, spec["warmup_steps"], meter.readings)
    measured = finish["run/steps"] - spec["warmup_steps"]
    if joules is not None and measured > 0:
        figures["joules_per_sample"] = joules / (measured * spec["global_batch"])
    figures["last_loss"] = [e["metrics"]["train/loss"] for e in events if e["event"] == "step"][-1]
    return figures


def _row_of(engine):
    """Returns the row of the engine in catalog/engines.cc."""
    with open(os.path.join(ADAPTERS, "scalelab", "run_parameters.json"), encoding="utf-8") as file:
        return next(row for row in json.load(file)["engines"] if row["name"] == engine)


def _environment(directory, trainer, rank, ranks):
    return {
        **os.environ, "SCALELAB_SPEC": os.path.join(directory, "spec.json"), "SCALELAB_ATTEMPT_DIR": directory,
        "SCALELAB_EVENTS": os.path.join(directory, f"events-{rank}.jsonl"), "SCALELAB_TRAINER": os.path.abspath(trainer),
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
    }


def _wait(running, deadline):
    """Waits for the processes, and kills them at the deadline. Returns whether any had to be killed."""
    late = False
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            process.wait()
    return late


def _events(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def all_reduce_rank(rank, ranks, store):
    """A rank of NCCL's all-reduce in PyTorch. Rank 0 prints one JSON line for each size."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    for mib in (1, 16, 256):
        tensor = torch.zeros(mib << 18, device="cuda")
        for _ in range(5):
            dist.all_reduce(tensor)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(20):
            dist.all_reduce(tensor)
        end.record()
        end.synchronize()
        seconds = begin.elapsed_time(end) / 20e3
        if rank == 0:
            bus = (mib << 20) * 2 * (ranks - 1) / ranks / seconds / 1e9
            print(json.dumps({"mib": mib, "ranks": ranks, "seconds": seconds, "bus_gb_per_s": bus}), flush=True)
    dist.destroy_process_group()


def all_reduce(gpus, limit):
    """Returns the times of NCCL's all-reduce over all GPUs, or [] if it failed or took longer than `limit` seconds."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as directory:
        argv = [sys.executable, "-B", os.path.abspath(__file__), "--all-reduce-rank"]
        store = os.path.join(directory, "store")
        running = [subprocess.Popen([*argv, str(rank), str(gpus), store], stdout=subprocess.PIPE, text=True) for rank in range(gpus)]
        late = _wait(running, time.monotonic() + limit)
        lines = [process.stdout.read() for process in running][0].splitlines()
    # With NCCL_DEBUG set, NCCL writes other lines.
    return [] if late else [json.loads(line) for line in lines if line.startswith("{")]


def machine():
    """Returns the versions and the hardware on which the figures depend."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    facts = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "gpus": gpus, "cpus": os.cpu_count(),
        "os": platform.platform(), "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
    if gpus:
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    query = "driver_version,clocks.sm,clocks.max.sm,power.limit,persistence_mode,temperature.gpu"
    try:
        argv = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
        facts["nvidia_smi"] = {"query": query, "gpus": done.stdout.splitlines()}
    except (OSError, subprocess.SubprocessError):
        pass
    return facts


def tests_of(path):
    """Returns how many tests of a JUnit file passed, failed and were skipped."""
    if not path or not os.path.exists(path):
        return {}
    suite = xml.etree.ElementTree.parse(path).getroot()
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "skipped")}
    counts["failed"] = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    return counts


def markdown(report):
    """Returns the report as text."""
    facts, tests = report["machine"], report["tests"]
    lines = [f"# GPU check of {facts['time']}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {json.dumps(value) if isinstance(value, (list, dict)) else value} |" for name, value in facts.items()]
    if tests:
        lines += ["", f"Tests: {tests['tests']}, failed {tests['failures']}, skipped {tests['skipped']}. " + ", ".join(tests["failed"])]
    lines += ["", "Samples/s: global batch / median step. The ratio is to PyTorch eager in the same row group.", "",
              "| benchmark | mode | samples/s | ratio | ms a step | memory, GiB | J/sample |", "|---|---|---|---|---|---|---|"]
    base = {r["title"]: r["throughput"] for r in report["benchmarks"] if r["mode"] == "PyTorch, eager" and "throughput" in r}
    for r in report["benchmarks"]:
        if "error" in r:
            lines.append(f"| {r['title']} | {r['mode']} | failed: {' '.join(r['error'].split()).replace('|', ' ')} | | | | |")
            continue
        ratio = f"{r['throughput'] / base[r['title']]:.2f}" if r["title"] in base else ""
        memory = f"{r['device_memory_bytes'] / 2**30:.2f}" if "device_memory_bytes" in r else ""
        joules = f"{r['joules_per_sample']:.4g}" if "joules_per_sample" in r else ""
        speed = f"{r['throughput']:.0f} | {ratio} | {r['step_seconds'] * 1e3:.2f}"
        lines.append(f"| {r['title']} | {r['mode']} | {speed} | {memory} | {joules} |")
    if report["all_reduce"]:
        lines += ["", "NCCL's all-reduce in PyTorch:", "", "| MiB | ranks | ms | bus GB/s |", "|---|---|---|---|"]
        lines += [f"| {r['mib']} | {r['ranks']} | {r['seconds'] * 1e3:.3f} | {r['bus_gb_per_s']:.1f} |" for r in report["all_reduce"]]
    if report["left_out"]:
        lines += ["", "Left out, because the time was over: " + "; ".join(report["left_out"]) + "."]
    return "\n".join(lines) + "\n"


def measure(trainer, quick, gpus, limit, report, adapters=ADAPTERS):
    """Runs the benchmarks, and appends their results and the titles of those that were left out to `report`. Yields after each of
    them."""
    end = time.monotonic() + limit
    for title, mode, engine, spec, ranks in benchmarks(quick, gpus):
        allowed = min(end - time.monotonic(), LONGEST)
        figures = {"late": True}
        if allowed >= SHORTEST:
            try:
                figures = run(trainer, engine, spec, ranks, allowed, adapters)
            except Exception as error:  # of one benchmark, which must not end the others
                figures = {"error": f"{type(error).__name__}: {error}"}
        if figures.pop("late", False) and allowed < LONGEST:
            report["left_out"].append(f"{title}, {mode}")
        else:
            report["benchmarks"].append({"title": title, "mode": mode, **figures})
            print(f"{title}, {mode}: {figures.get('error') or format(figures['throughput'], '.0f') + ' samples/s'}", flush=True)
        yield


def write(report, directory):
    """Writes the report to files of a directory. A report that is there stays complete until it is replaced."""
    os.makedirs(directory, exist_ok=True)
    for name, text in (("report.json", json.dumps(report, indent=1) + "\n"), ("report.md", markdown(report))):
        with open(os.path.join(directory, name + ".new"), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(file.name, os.path.join(directory, name))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainer")
    parser.add_argument("--tests", help="JUnit file of ctest")
    parser.add_argument("--out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, help="for everything; what does not fit is left out")
    parser.add_argument("--all-reduce-rank", nargs=3, metavar=("RANK", "RANKS", "STORE"))
    options = parser.parse_args()
    if options.all_reduce_rank:
        rank, ranks, store = options.all_reduce_rank
        return all_reduce_rank(int(rank), int(ranks), store)
    begin, facts = time.monotonic(), machine()
    gpus = len(facts["gpus"])
    limit = LIMIT[options.quick]
    if options.seconds is not None:
        limit = min(limit, begin + options.seconds - ALL_REDUCE - time.monotonic())
    report = {"machine": facts, "tests": tests_of(options.tests), "benchmarks": [], "all_reduce": [], "left_out": []}
    for _ in measure(options.trainer, options.quick, gpus, limit, report):
        write(report, options.out)
    report["all_reduce"] = all_reduce(gpus, LONGEST if options.seconds is None else max(1, begin + options.seconds - time.monotonic()))
    write(report, options.out)
    tests = report["tests"]
    failed = [result for result in report["benchmarks"] if "error" in result]
    done = report["benchmarks"] and report["all_reduce"] and tests
    return int(bool(failed) or not done or tests["failures"] > 0 or tests["skipped"] == tests["tests"])


if __name__ == "__main__":
    sys.exit(main())
