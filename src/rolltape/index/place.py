"""Where a run's index lies: with the run if it can, else in the user's cache, else in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

INDEX_FILE = "index.sqlite"
IN_MEMORY = ":memory:"

_NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "sshfs", "virtiofs", "vboxsf", "wekafs",
}  # fmt: skip
"""File systems on which several machines may lock one file, and SQLite's documentation says not to."""


def places(root: str | None, run: str) -> Iterator[str]:
    """Yield the paths to try for the index of `run`, which lies in the directory `root`, best first."""
    if root is not None and os.access(root, os.W_OK | os.X_OK) and not is_networked(root):
        yield os.path.join(root, INDEX_FILE)
    if (cached := _in_cache(root or "", run)) is not None and not is_networked(os.path.dirname(cached)):
        yield cached
    yield IN_MEMORY


def is_networked(path: str) -> bool:
    """Say whether `path` lies on a network file system. Where nothing can be known, it is taken for a local one."""
    kind = file_system_of(os.path.realpath(path))
    return kind in _NETWORK or kind.startswith("fuse")


def file_system_of(path: str) -> str:
    """Return the type of the file system that `path` lies on, as Linux names it; "" where there is nothing to read."""
    best, kind = -1, ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            for mount in mounts:
                before, _, after = mount.partition(" - ")
                point = _unescaped(before.split(" ")[4])
                if len(point) >= best and (path == point or path.startswith(point.rstrip("/") + "/")):
                    best, kind = len(point), after.split(" ")[0]
    except OSError:
        return ""
    return kind


def _unescaped(point: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, character)
    return point


def _in_cache(root: str, run: str) -> str | None:
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cache / "rolltape" / "index"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: nobody's home
        return None
    where = hashlib.blake2b(os.path.realpath(root).encode(errors="surrogateescape"), digest_size=6).hexdigest()
    return str(folder / f"{run}-{where}.sqlite")
