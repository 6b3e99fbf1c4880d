"""Stores the state of a PyTorch engine in files of torch.save. They contain only tensors, numbers, and dicts and lists of them,
so that loading them runs no code."""
import os

import torch

from . import durable
from .errors import RunError

_FLOAT = "float, hexadecimal"


def save(state, shared, directory, rank):
    """Writes the parts of `state`. Only rank 0 writes the parts named in `shared`. Returns the names of this rank's files."""
    files = {f"rank-{rank}.pt": {name: part for name, part in state.items() if name not in shared}}
    if rank == 0 and shared:
        files["shared.pt"] = {name: state[name] for name in shared}
    for name, parts in files.items():
        with durable.replace(os.path.join(directory, name)) as file:
            torch.save(_encoded(parts), file)
    return list(files)


def load(directory, rank, device):
    """Returns the parts that this rank has saved, and the shared parts."""
    state = {}
    for name in (f"rank-{rank}.pt", "shared.pt"):
        path = os.path.join(directory, name)
        if os.path.exists(path):
            # With weights_only, a file cannot run code.
            state.update(_decoded(torch.load(path, map_location=device, weights_only=True)))
    return state


def _encoded(value):
    """Replaces floats by texts, because torch 1.13 does not load floats with weights_only."""
    if isinstance(value, float):
        return {_FLOAT: value.hex()}
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    return [_encoded(item) for item in value] if isinstance(value, (list, tuple)) else value


def _decoded(value):
    if isinstance(value, dict):
        return float.fromhex(value[_FLOAT]) if set(value) == {_FLOAT} else {key: _decoded(item) for key, item in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value


@torch.no_grad()
def assign(tensors, values):
    """Copies values into tensors by their names."""
    for name, tensor in tensors.items():
        if name not in values or values[name].shape != tensor.shape:
            raise RunError(
                f'the checkpoint has no tensor "{name}" of shape {list(tensor.shape)}: another version wrote it; remove the checkpoints '
                "of the run",
                "configuration",
            )
        tensor.copy_(values[name])


def random(device):
    """Returns the state of PyTorch's random numbers."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random(device, states):
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
