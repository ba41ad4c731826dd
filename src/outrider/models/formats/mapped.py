"""Files as read-only memory.

Nothing guards against a file that shrinks while it is mapped: the kernel then ends the process.
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
    """The bytes of a regular file, memory-mapped read-only (an empty one cannot be: b"" then).

    Raises ModelNotFoundError when nothing is there or it is a folder, ModelFileError when it is no
    regular file or cannot be read.
    """
    try:
        # Non-blocking, so that a pipe with nobody at the other end is refused and not waited for.
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
    """Let go of the whole pages under a view into a mapped file: they leave this process's memory, and are
    read from the file again when touched. Does nothing for other arrays and where the system cannot."""
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
