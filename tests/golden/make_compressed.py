"""Makes `compressed`: the sealed segments of `v1`, compressed. Run once per version of that format, and never again.

python tests/golden/make_compressed.py tests/golden/compressed
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from rolltape.journal import compress
from rolltape.store import LocalStore

if __name__ == "__main__":
    target = Path(sys.argv[1])
    if target.exists():
        sys.exit(f"{target} is there already: golden files are never made again")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        shutil.copytree(Path(__file__).parent / "v1" / "run", run)
        epoch = run / "journal" / "00000001"
        for leftover in ("00000002.jsonl.zst", "00000002.2.jsonl.zst"):  # so that this copy's name has a number
            (epoch / leftover).write_bytes(b"")
        compress(LocalStore(run))
        shutil.copytree(run / "journal", target / "journal", ignore=shutil.ignore_patterns("*.jsonl", "*.pack"))
