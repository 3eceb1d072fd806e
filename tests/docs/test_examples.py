"""What the documentation shows is run: its Python as it stands, its shell commands on a run that is being written."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rolltape.journal import Reader
from rolltape.store import LocalStore
from rolltape.testing.kill import Child

ROOT = Path(__file__).parents[2]
HANG_S = 120.0


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[tuple[str, str]]:
    """Each shell command of a page, with the output that the page shows for it."""
    found = []
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines(keepends=True)
            end = next(n for n, line in enumerate(lines, 1) if not line.endswith("\\\n"))
            found.append(("".join(lines[:end]).strip(), "".join(lines[end:])))
    return found


def run_python(code: str, folder: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True, timeout=HANG_S
    ).stdout


def run_shell(command: str, folder: Path, *, half_lines: bool = False) -> str:
    """With `half_lines`, the command may complain about a last line that is half there, after it printed the others."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=env,
        check=not half_lines,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    return done.stdout


def test_the_first_example_of_the_readme_runs_and_prints_its_records(tmp_path):
    """And jq shows of them what the README says it shows."""
    writing, reading = blocks("README.md", "python")
    assert run_python(writing, tmp_path) == run_python(writing, tmp_path) == "completed 1.0\n"
    assert run_python(reading, tmp_path) == "q17#5 completed ['ask', 'grade']\n"
    ls, show = (command for command, _ in commands("README.md") if command.startswith("rolltape"))
    assert "q17#5" in run_shell(ls, tmp_path)
    assert "ask" in run_shell(show, tmp_path)
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    ((command, output),) = [shown for shown in commands("README.md") if shown[0].startswith("jq")]
    assert run_shell(command, tmp_path) == output


@pytest.fixture
def live(tmp_path):
    """The run of the page, which another process writes for as long as the test needs it."""
    start = commands("docs/reading.md")[0][0]
    assert start.startswith("python -m ") and start.endswith("> /dev/null &")
    argv = start.removeprefix("python ").removesuffix("> /dev/null &").replace("\\\n", " ").split()
    os.chdir(tmp_path)
    with Child(argv) as child:
        child.wait_for(lambda line: line.startswith("ACK 3 2 "), HANG_S)
        yield tmp_path
        assert child.returncode is None, "the run was to be written while it was read"
    os.chdir(ROOT)


def test_the_page_on_reading_shows_what_its_python_prints(live):
    """Each block names every trajectory of the run, while it is being written."""
    shown = blocks("docs/reading.md", "python")
    assert len(shown) == 3
    for code in shown:
        printed = run_python(code, live)
        assert [key for key in ("torture-0#0", "torture-3#0") if key not in printed] == []


def test_the_page_on_reading_shows_what_its_commands_print(live):
    """The first records of a run are the same whenever one looks; the others have the shape that is shown."""
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    first, last = commands("docs/reading.md")[1:]
    assert sorted(
        line.rpartition(",")[0] for line in run_shell(first[0], live, half_lines=True).splitlines()
    ) == sorted(line.rpartition(",")[0] for line in first[1].splitlines())
    assert run_shell(last[0], live, half_lines=True).startswith('{"type":"')


def test_the_page_on_the_format_tells_a_sound_line_from_any_other(tmp_path):
    """A reader written after its Python judges every line of a run as ours does."""
    (code,) = blocks("docs/format.md", "python")
    page: dict[str, Callable[[bytes, bytes, int], bool]] = {}
    exec(code, page)  # type: ignore[arg-type]
    run_python(blocks("README.md", "python")[0], tmp_path)
    reader = Reader(LocalStore(tmp_path / "runs/first"))
    identity = f"{reader.run}/1/1".encode()
    lines = list(reader.scan(pytest.fail))
    assert len(lines) > 5
    for line in lines:
        assert page["is_sound"](line.raw, identity, line.offset)
        assert not page["is_sound"](line.raw, identity, line.offset + 1)
        assert not page["is_sound"](line.raw.replace(b"e", b"f", 1), identity, line.offset)


def shown_after(page: str) -> list[tuple[str, str]]:
    """Each block of Python of a page, and the output that is shown right below it."""
    text = (ROOT / page).read_text()
    return re.findall(r"^```python\n((?:(?!```).*\n)*)```\n\n```\n((?:(?!```).*\n)*)```$", text, re.MULTILINE)


@pytest.mark.parametrize("page", ["docs/guide/rollouts.md", "docs/guide/resuming.md"])
def test_the_guide_shows_what_its_examples_print(page, tmp_path):
    """And the trajectory of the first one finishes without calling anything when it is run again."""
    examples = shown_after(page)
    assert examples
    for code, output in examples:
        assert run_python(code, tmp_path) == output


def test_the_guide_on_resuming_shows_what_a_death_and_a_resume_print(tmp_path):
    """The commands of the page, on its first example."""
    (tmp_path / "squares.py").write_text(blocks("docs/guide/resuming.md", "python")[0])
    for command, output in commands("docs/guide/resuming.md"):
        printed = run_shell(command, tmp_path, half_lines=True)
        assert printed == output if output else "broke off here" in printed
