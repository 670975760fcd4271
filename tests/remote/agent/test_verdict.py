"""The verdict engine: the decision table, row by row."""

from __future__ import annotations

import pytest

from remote.agent.verdict import (
    Observations,
    agentic_word,
    decide,
    failure_in,
    lifecycle_word,
    operations_word,
)

LIVE = Observations(process_alive=True, log_bytes=10, log_age=5.0)
STALE = LIVE._replace(log_age=901.0)
GONE = Observations(log_bytes=10, log_age=5.0)

TABLE = [
    # reachability comes before everything, also before an exit record
    ("unreachable", Observations(reachable=False), "UNKNOWN", []),
    ("unreachable, old record", Observations(reachable=False, exit_code=0), "UNKNOWN", []),
    # an exit record comes before a live process
    ("ended well", GONE._replace(exit_code=0), "COMPLETED", []),
    ("ended well, still alive", LIVE._replace(exit_code=0), "COMPLETED", []),
    ("output missing", GONE._replace(exit_code=0, missing=("model",)), "PARTIAL", []),
    ("failed", GONE._replace(exit_code=1), "FAILED", []),
    ("failed, outputs there", GONE._replace(exit_code=137), "FAILED", []),
    # live processes
    ("fresh log", LIVE, "RUNNING", []),
    ("no log yet", Observations(process_alive=True), "RUNNING", []),
    ("exactly at the limit", LIVE._replace(log_age=900.0), "RUNNING", []),
    ("stale log, no GPU", STALE, "RUNNING", ["stalled"]),
    ("stale log, idle GPU", STALE._replace(gpu_utilization=0.0), "RUNNING", ["stalled"]),
    ("stale log, busy GPU", STALE._replace(gpu_utilization=98.0), "RUNNING", ["silent_hang"]),
    (
        "stale log, fresh metrics",
        STALE._replace(gpu_utilization=98.0, progress_age=3.0),
        "RUNNING",
        [],
    ),
    ("trainer gone, workers live", GONE._replace(group_alive=3), "RUNNING", []),
    ("nobody watches it", LIVE._replace(supervisor_alive=False), "RUNNING", ["unsupervised"]),
    ("old failure in the log of a live run", LIVE._replace(failure="boom"), "RUNNING", []),
    # between the trainer's end and its record
    (
        "supervisor at the record",
        GONE._replace(failure="ValueError: x", supervisor_alive=True),
        "RUNNING",
        [],
    ),
    # nobody there, no record
    ("failure in the log", GONE._replace(failure="ValueError: x"), "FAILED", []),
    ("a log", GONE, "STOPPED", ["needs_human"]),
    ("an empty log", Observations(log_bytes=0), "STOPPED", ["needs_human"]),
    ("nothing", Observations(), "UNKNOWN", []),
]


@pytest.mark.parametrize(
    ("seen", "verdict", "flags"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_table(seen: Observations, verdict: str, flags: list[str]) -> None:
    """Each row of the table gives its verdict, its flags, and a reason in words."""
    found = decide(seen)
    assert found["verdict"] == verdict
    assert [name for name, value in found["flags"].items() if value is True] == flags
    assert found["reason"]


def test_unreachable_exits_75() -> None:
    """A host that can't be reached is not a dead run."""
    found = decide(Observations(reachable=False))
    assert found["exit_code"] == 75
    assert found["flags"]["control_plane"] == "unavailable"
    assert decide(LIVE)["exit_code"] == 0


@pytest.mark.parametrize(
    ("line", "fails"),
    [
        ("Traceback (most recent call last):", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", True),
        ("ValueError: bad shape", True),
        ("train.sh: line 3: 12345 Killed    python train.py", True),
        ("Killed", True),
        ("OSError: [Errno 28] No space left on device", True),
        ("Segmentation fault (core dumped)", True),
        ("timeout=600", False),
        ("ReadTimeout, retrying in 2 s", False),
        ("loss: nan", False),
        ("the sample says: Killed in action", False),
        ("0 errors", False),
        ("error_rate: 0.1", False),
    ],
)
def test_failure_lines(line: str, fails: bool) -> None:
    """What a dying program prints counts; a bare timeout, a nan or a word in a sample doesn't."""
    assert (failure_in(["fine", line]) == line) is fails


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("RUNNING", ("RUNNING", "running", "running")),
        ("COMPLETED", ("SUCCEEDED", "completed", "completed")),
        ("PARTIAL", ("UNKNOWN", "stopped", "stopped")),
        ("FAILED", ("FAILED", "failed", "failed")),
        ("STOPPED", ("UNKNOWN", "stopped", "stopped")),
        ("UNKNOWN", ("UNKNOWN", "unknown", "starting")),
    ],
)
def test_words_of_the_front_ends(verdict: str, words: tuple[str, str, str]) -> None:
    """Every front end has its own words for one verdict."""
    assert (lifecycle_word(verdict), operations_word(verdict), agentic_word(verdict)) == words
