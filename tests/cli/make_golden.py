"""`python -m tests.cli.make_golden`: write what `ls` and `show` print now. Read the difference before you commit it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cli.sample import HOSTILE
from tests.cli.support import rolltape
from tests.cli.test_show import GOLDEN, told


def main() -> None:
    os.environ.update(TZ="UTC", COLUMNS="80")
    time.tzset()
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for part in ("1", "2"):
            sample = Path(__file__).with_name("sample.py")
            subprocess.run([sys.executable, str(sample), folder, part], check=True)
        for key in ("kyoto#0", "chess#0", "mail@1#2", "flaky#0", "shop#0", "slow#0", "left#0", HOSTILE):
            name = "hostile" if key == HOSTILE else key.partition("#")[0].partition("@")[0]
            (GOLDEN / f"show-{name}.txt").write_text(told(rolltape("show", folder, key).out))
        for columns in ("80", "120"):
            os.environ["COLUMNS"] = columns
            (GOLDEN / f"ls-{columns}.txt").write_text(rolltape("ls", folder).out)


if __name__ == "__main__":
    main()
