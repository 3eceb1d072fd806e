"""The tree of errors: as it is drawn, complete, and able to travel between processes."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import subprocess
import sys

import pytest

from rolltape import errors

ALL = [getattr(errors, name) for name in errors.__all__]


def name_of(error: type[BaseException]) -> str:
    return error.__name__


def test_the_tree_is_as_its_docstring_draws_it():
    """Indentation by four columns a level, the name after the branch."""
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        stem = line.replace("├── ", "    ").replace("└── ", "    ").replace("│", " ")
        name = stem.split()[0] if stem.startswith("    ") and stem.split() else ""
        if name in errors.__all__:
            depth = (len(stem) - len(stem.lstrip())) // 4 - 1
            path[depth:] = [name]
            drawn[name] = path[depth - 1] if depth else "Exception"
    assert drawn == {error.__name__: error.__base__.__name__ for error in ALL}


def test_every_error_is_exported_and_the_list_is_sorted():
    """What users may catch is what `__all__` names."""
    defined = [name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)]
    assert errors.__all__ == sorted(defined)
    assert all(error.__doc__ for error in ALL)


@pytest.mark.parametrize("error", ALL, ids=name_of)
def test_one_except_catches_everything(error):
    """And nothing of ours is a BaseException that would pass it, or a builtin that others catch."""
    assert issubclass(error, errors.RolltapeError)
    assert error.__mro__[-3:] == (Exception, BaseException, object)


@pytest.mark.parametrize("error", ALL, ids=name_of)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_and_its_message_survive_pickling(error, protocol):
    """Ray, multiprocessing and concurrent.futures carry them between processes."""
    raised = error("the bound is 3: raise it with limit=4 (Zürich, \U0001f600)")
    for again in (pickle.loads(pickle.dumps(raised, protocol)), copy.copy(raised), copy.deepcopy(raised)):
        assert type(again) is error
        assert str(again) == str(raised)
        assert again.args == raised.args


def test_errors_that_the_library_raises_survive_the_way_to_another_process(tmp_path):
    """Made where they happen, with their real messages, and pickled there."""
    child = """
import pickle, sys
from rolltape.errors import RolltapeError
from rolltape.journal import Reader, WriterConfig, open_writer
from rolltape.records import Note
from rolltape.store import LocalStore

found = []
def tried(function):
    try:
        function()
    except RolltapeError as error:
        found.append(error)

store = LocalStore(sys.argv[1])
tried(lambda: Reader(store))
tried(lambda: WriterConfig(durability="paper"))
writer = open_writer(store, WriterConfig(record_bytes_max=100))
tried(lambda: writer.append_from_thread(Note(epoch=1, name="x" * 1000, unix_s=0.0)))
writer.close()
tried(lambda: writer.append_from_thread(Note(epoch=1, name="late", unix_s=0.0)))
sys.stdout.buffer.write(pickle.dumps(found))
"""
    path = [p for p in sys.path if p]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{child}", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    found = pickle.loads(done.stdout)
    assert [type(error).__name__ for error in found] == ["NotARunError", "UsageError", "LimitError", "JournalClosed"]
    for error, said in zip(found, ["no run here", "'paper'", "record_bytes_max=100", "closed"], strict=True):
        assert said in str(error)


def test_the_errors_need_nothing_of_ours():
    """Every layer raises them, so they stand below all."""
    tree = ast.parse(inspect.getsource(errors))
    imported = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)}
    assert imported == {"from __future__ import annotations"}
