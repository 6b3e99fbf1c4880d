"""Replaces files atomically and durably, even if the power fails, and computes checksums of files. Uses only the standard
library."""
import contextlib
import errno
import hashlib
import os

_BLOCK = 1 << 20


@contextlib.contextmanager
def replace(path):
    """Returns a context with a binary file for writing. At the end of the context, the written file replaces the file at `path`.
    If there is an exception, the file at `path` does not change."""
    temporary = f"{path}.new"
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # without it, a power failure after the rename could leave an empty file
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
    sync_directory(os.path.dirname(path) or ".")


def sync_directory(path):
    """Syncs a directory, so that new names in it survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as e:
        if e.errno != errno.EINVAL:  # some file systems do not support it, and do not need it
            raise
    finally:
        os.close(descriptor)


def sync_directories(path):
    """Syncs a directory and those above it in the same file system, as far as this process may read them."""
    path = os.path.realpath(path)
    device = os.stat(path).st_dev
    while os.stat(path).st_dev == device:
        if os.access(path, os.R_OK):
            sync_directory(path)
        parent = os.path.dirname(path)
        if parent == path:
            return
        path = parent


def sum_of(data):
    return hashlib.sha256(data).hexdigest()


def sum_of_file(path):
    """Returns (bytes, checksum) of a file."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while True:
            block = file.read(_BLOCK)
            if not block:
                return size, digest.hexdigest()
            digest.update(block)
            size += len(block)
