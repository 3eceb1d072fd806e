"""The errors that Rolltape raises.

    RolltapeError
    ├── UsageError              the call is wrong; the message says what to write instead
    │   └── NotARunError        the directory holds no run
    ├── EncodeError             a value cannot be recorded; names the path inside the value and its type
    ├── LimitError              a stated bound was hit; names the bound and how to raise it
    ├── JournalError            the journal could not take or give a record
    │   ├── JournalFailed       the file system refused; what was not acknowledged is not promised
    │   ├── DiskFullError       no room came back within the wait
    │   └── JournalClosed       the writer is closed, or belongs to the parent of this process
    ├── DamagedError            what was on disk cannot be read whole; names the places
    ├── FormatError             a newer format, or a file that is not ours
    ├── SupersededError         a newer attempt or another process has taken over
    ├── InUseError              another process, or another task of this one, works on the trajectory
    └── DivergenceError         the rollout does something else than was recorded; shows both

User code raises plain exceptions and Rolltape records them. Only misuse, limits and damage raise these. Every error
pickles, and its message says what to do next.
"""

from __future__ import annotations

__all__ = [
    "DamagedError",
    "DiskFullError",
    "DivergenceError",
    "EncodeError",
    "FormatError",
    "InUseError",
    "JournalClosed",
    "JournalError",
    "JournalFailed",
    "LimitError",
    "NotARunError",
    "RolltapeError",
    "SupersededError",
    "UsageError",
]


class RolltapeError(Exception):
    """The root: `except RolltapeError` catches everything that Rolltape itself raises."""


class UsageError(RolltapeError):
    """The call is wrong. The message says what to write instead."""


class NotARunError(UsageError):
    """The directory holds no run."""


class EncodeError(RolltapeError):
    """A value cannot be recorded. The message names the path inside the value, its type and what to do."""


class LimitError(RolltapeError):
    """A stated bound was hit. The message names the bound and how to raise it."""


class JournalError(RolltapeError):
    """The journal could not take or give a record."""


class JournalFailed(JournalError):
    """The file system refused a write, a sync or a listing. What was not acknowledged is not promised to be on disk."""


class DiskFullError(JournalError):
    """The disk was full, and no room came back within the wait."""


class JournalClosed(JournalError):
    """The writer is closed, or belongs to the parent of this process."""


class DamagedError(RolltapeError):
    """What was on disk cannot be read whole. The message names the place."""


class FormatError(RolltapeError):
    """A newer major format, or a file that is not ours."""


class SupersededError(RolltapeError):
    """A newer attempt, here or in another process, has taken over."""


class InUseError(RolltapeError):
    """Another process, or another task of this one, works on the trajectory. The message says who."""


class DivergenceError(RolltapeError):
    """On replay the rollout does something else than what was recorded. The message shows both, and what to do."""
