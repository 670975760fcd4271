"""The command's edges: global options anywhere, one line or one object for a fault, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from cli import main as cli
from cli.output import Output, columns
from experiment.errors import ContractInvalid


@pytest.mark.parametrize("words", [["--json", "up", "--dry-run"], ["up", "--dry-run", "--json"]])
def test_json_may_stand_before_or_after(words, home, capsys):
    """Both places give the same object, alone on stdout."""
    assert cli.main(["--home", str(home.root), *words]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "dry_run": True,
        "would_start": ["server", "experiments", "reapers"],
    }
    assert err == ""


@pytest.mark.parametrize(
    ("words", "folder", "rest"),
    [
        (["--home", "/a", "up"], "/a", ["up"]),
        (["up", "--home=/b"], "/b", ["up"]),
        (["ssh", "RUN", "--", "ls", "--json", "--home", "/c"], None, None),
    ],
)
def test_home_is_taken_from_anywhere_before_the_dashes(words, folder, rest):
    """What stands behind `--` belongs to another program and stays as it is."""
    assert cli._take_globals(words) == (folder, rest or words)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["fly"], "fly"),
        (["up", "--frob"], "--frob"),
        (["--home"], "--home"),
        (["down", "extra"], "extra"),
    ],
)
def test_usage_errors_exit_64_in_one_line(words, named, capsys):
    """One line on stderr names the word and the next move; stdout stays empty."""
    assert cli.main(words) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert named in err
    assert err.count("\n") == 1
    assert "--help" in err or "expected a folder" in err


def test_a_usage_error_with_json_is_an_object_and_stderr_silent(capsys):
    """`{"error": {kind, message, hint, exit_code}}` on stdout, nothing on stderr."""
    assert cli.main(["fly", "--json"]) == 64
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["kind"] == "usage"
    assert err == ""


def test_every_fault_found_has_a_line(capsys):
    """Details follow the error line, one each; with --json they are `details`."""
    error = ContractInvalid("contract refused", "c.yaml", details=["a: 1", "b: 2"])
    assert Output().failure(error) == 1
    assert capsys.readouterr().err == "error: contract refused: c.yaml\n  a: 1\n  b: 2\n"
    Output(as_json=True).failure(error)
    assert json.loads(capsys.readouterr().out)["error"]["details"] == ["a: 1", "b: 2"]


def test_ctrl_c_is_interrupted(monkeypatch, home, capsys):
    """Ctrl-C exits 130 and says that the host goes on."""
    monkeypatch.setattr("cli.server._open_rentals", _interrupt)
    assert cli.main(["--home", str(home.root), "--json", "down"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "interrupted"


def test_a_fault_of_ours_is_recorded_not_thrown_at_the_person(monkeypatch, home, capsys):
    """An unknown exception becomes one line, exit 70, and a file with the traceback."""
    monkeypatch.setattr("cli.server._open_rentals", lambda _home: {}["nothing"])
    assert cli.main(["--home", str(home.root), "down"]) == 70
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    (file,) = home.logs.glob("fault-*.txt")
    assert str(file) in error
    assert "KeyError" in file.read_text()


def test_help_is_quick_and_loads_no_prefect():
    """`charter --help` answers at once: nothing heavy is imported for it."""
    code = (
        "import sys; from cli.main import main; code = main(['--help']);"
        "heavy = [n for n in ('prefect', 'sqlalchemy', 'pydantic', 'fabric') if n in sys.modules];"
        "sys.exit(code or len(heavy))"
    )
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert "Usage: charter" in done.stdout
    assert time.monotonic() - begin < 5, "0.2 s on an idle machine"


def test_no_command_shows_the_help(capsys):
    """`charter` alone shows what there is."""
    assert cli.main([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_columns_line_up():
    """The same table on a terminal and in a pipe, without trailing blanks."""
    assert columns(("a", "long"), [("xyz", 1)]) == "a    long\nxyz  1"


def _interrupt(_home):
    raise KeyboardInterrupt
