"""Each of doctor's findings names what was found and its fix."""

from __future__ import annotations

import sqlite3

from experiment.checks import doctor
from experiment.checks.outcome import Outcome, Status
from experiment.paths import Home


def test_a_home_not_yet_there_is_fine_and_stays_absent(home: Home):
    """Looking creates nothing."""
    assert doctor.disk(home).status is Status.PASS
    assert doctor.ledger(home).status is Status.SKIP
    assert doctor.key_modes(home).status is Status.SKIP
    assert not home.root.exists()


def test_a_key_open_to_others_is_named_with_the_command(home: Home):
    """A private key that the group may read fails; the fix is a command to paste."""
    home.keys.mkdir(parents=True, mode=0o700)
    key = home.keys / "signing.key"
    key.write_text("secret")
    key.chmod(0o640)
    found = doctor.key_modes(home)
    assert found.status is Status.FAIL
    assert str(key) in found.fix
    assert found.fix.startswith("chmod ")
    key.chmod(0o600)
    assert doctor.key_modes(home).status is Status.PASS


def test_a_file_that_is_no_ledger_fails(home: Home):
    """A damaged ledger is a finding, not a traceback."""
    home.root.mkdir()
    (home.root / "ledger.sqlite").write_text("not a database, but long enough to be looked at")
    found = doctor.ledger(home)
    assert found.status is Status.FAIL
    assert "not a database" in found.found


def test_a_good_ledger_passes(home: Home):
    """An empty but valid SQLite file is taken and prepared."""
    home.root.mkdir()
    sqlite3.connect(home.root / "ledger.sqlite").close()
    assert doctor.ledger(home).status is Status.PASS


def test_a_base_environment_without_torch_fails(tmp_path):
    """The packages that are missing are named, and how to get them."""
    found = doctor.base_environment({"CHARTER_LOCAL_BASE": str(tmp_path)})
    assert found.status is Status.FAIL
    assert "make setup" in found.fix


def test_missing_programs_are_skipped_with_their_use():
    """What only some uses need never fails the doctor."""
    found = doctor.program("weed", None, "the tests of the S3 store")
    assert found.status is Status.SKIP
    assert "S3" in found.fix


def test_detail_sets_found_against_expected():
    """Only a check that did not pass speaks of what was expected."""
    assert Outcome("a", Status.PASS, "x", "y").detail() == "x"
    assert Outcome("a", Status.FAIL, "x", "y").detail() == "found x; expected y"
