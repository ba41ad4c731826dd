"""Memory-maps files for reading.

If a file shrinks while it is mapped, an access past its end kills the process (SIGBUS); nothing prevents
that.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from outrider.errors import ModelFileError, ModelNotFoundError


def map_file(path: Path) -> mmap.mmap | bytes:
    """The bytes of a regular file, memory-mapped read-only; b"" for an empty file, which cannot be mapped.

    Raises ModelNotFoundError when the path does not exist or is a folder, ModelFileError when it is not a
    regular file or cannot be read.
    """
    try:
        # Non-blocking, because opening a pipe without a writer would wait forever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise ModelNotFoundError(f"{path}: no such file") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if status.st_size else b""
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be mapped: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise ModelNotFoundError(f"{path}: is a folder, not a model file")
    raise ModelFileError(f"{path}: is not a regular file")


def release(view: npt.NDArray[np.uint8]) -> None:
    """Release the memory of the whole pages that a view into a mapped file covers (MADV_DONTNEED).

    A later access reads them from the file again. Does nothing for other arrays, and on systems without
    madvise.
    """
    base: object = view
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    begin = view.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    start = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (begin + view.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        base.madvise(mmap.MADV_DONTNEED, start, length)
