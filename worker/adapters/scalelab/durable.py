"""Files that are there completely or not at all, also after a power failure, and sums that show damage. Standard library only."""
import contextlib
import errno
import hashlib
import os

_BLOCK = 1 << 20


@contextlib.contextmanager
def replace(path):
    """A context with a binary file: at its end, the file at `path` is replaced by what was written. After an exception it is as before."""
    temporary = f"{path}.new"
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # otherwise a power failure after renaming could leave an empty file
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
        if e.errno != errno.EINVAL:  # some file systems cannot sync directories, and have no cache of names to lose
            raise
    finally:
        os.close(descriptor)


def sum_of(data):
    return hashlib.sha256(data).hexdigest()


def sum_of_file(path):
    """Returns (bytes, sum) of a file."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while True:
            block = file.read(_BLOCK)
            if not block:
                return size, digest.hexdigest()
            digest.update(block)
            size += len(block)
