"""What the operating system's errors mean for a journal, in words."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from rolltape.errors import JournalFailed

if TYPE_CHECKING:
    from rolltape.store import Store

ADVICE = {
    errno.EROFS: "The file system is read-only: remount it or choose another directory, then run again",
    errno.ENOENT: "The run's directory is gone: was it moved or deleted while the run was open?",
    errno.ESTALE: "The network file system lost the file: check the mount, then run again",
    errno.EFBIG: "A file size limit was hit (ulimit -f): raise it, or lower segment_bytes_max, then run again",
    errno.ENOTDIR: "A file lies where a directory should be: choose another directory, or move it away",
    errno.EACCES: "Check who owns the directory and its permissions",
    errno.ENOSPC: "Free some space, then run again",
    errno.EDQUOT: "Free some space, then run again",
    0: "Everything acknowledged is kept; check the disk (dmesg), then run again",
}


def failure(store: Store, error: OSError) -> JournalFailed:
    """Say what the file system refused, where, and what to do."""
    return JournalFailed(f"{where(error)}: {store}. {ADVICE.get(error.errno or 0, ADVICE[0])}")


def where(error: OSError) -> str:
    name = f" {error.filename}" if error.filename else ""
    return f"the file system refused{name}: {os.strerror(error.errno) if error.errno else error}"
