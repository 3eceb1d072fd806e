"""Tools that break things on purpose, for Rolltape's tests and for yours.

- `rolltape.testing.disk.CrashDisk`: a file system in memory that loses what was not synced, tears writes and fails
  chosen operations.
- `rolltape.testing.kill`: run a child process and really kill it.
- `python -m rolltape.testing torture-write | torture-read`: a writer to torture from outside, and its judge.
"""
