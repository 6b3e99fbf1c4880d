"""Stores the state of an engine on TensorFlow, JAX or MXNet in files of arrays.

The frameworks' own files are not suitable. Keras' files contain the mean of the running statistics of all ranks, or require that
all ranks write them. They also do not contain the momentum of the recipe's SGD. MXNet stores the state of an optimizer as a pickle,
and loading a pickle may run code.
"""
import os

from . import durable
from .errors import RunError
from .safetensors import read_safetensors, write_tensors


def save(state, shared, directory, rank):
    """Writes lists of arrays by name. Only rank 0 writes, and needs, the lists named in `shared`. Returns the names of this rank's
    files."""
    files = {f"rank-{rank}.safetensors": [name for name in state if name not in shared]}
    if rank == 0:
        files["shared.safetensors"] = shared
    for file_name, names in files.items():
        arrays = {f"{name}/{i}": array for name in names for i, array in enumerate(state[name])}
        with durable.replace(os.path.join(directory, file_name)) as file:
            write_tensors(file, arrays)
    return list(files)


def load(like, directory, rank):
    """Reads lists of arrays by name, with the names and shapes of `like`."""
    arrays = {}
    for name in (f"rank-{rank}.safetensors", "shared.safetensors"):
        arrays.update(read_safetensors(os.path.join(directory, name)))
    return {name: [_array(arrays, f"{name}/{i}", array) for i, array in enumerate(own)] for name, own in like.items()}


def _array(arrays, name, like):
    if name not in arrays or arrays[name].shape != like.shape:
        raise RunError(
            f'the checkpoint has no tensor "{name}" of shape {list(like.shape)}: another version wrote it; remove the checkpoints '
            "of the run",
            "configuration",
        )
    return arrays[name]
