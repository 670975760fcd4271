"""End, and name, every process that a test run left behind.

    python setup/leftovers.py FOLDER

Whatever the tests start has a home below the run's own temporary FOLDER in its environment
(CHARTER_HOME, HOME, PGDATA, …): that is how it is known, and nothing else is touched.

exit 0 when there was nothing; 1 when something had to be ended.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from remote.agent import process

GRACE_SECONDS = 10.0


def main() -> int:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print("usage: leftovers.py FOLDER", file=sys.stderr)
        return 64
    found = _below(sys.argv[1])
    for row in found:
        print(f"left behind: pid {row.pid}: {process.command_line(row.pid)[:160]}", file=sys.stderr)
        process.send(process.identity_of(row), signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while found and _below(sys.argv[1]) and time.monotonic() < deadline:
        time.sleep(0.2)
    for row in _below(sys.argv[1]):
        process.send(process.identity_of(row), signal.SIGKILL)
    return 1 if found else 0


def _below(folder: str) -> list[process.Facts]:
    """Living processes, all but those that run this, with the folder in a variable of a home."""
    rows = [row for row in process.all_facts() if row.state not in process.DEAD_STATES]
    return [
        row
        for row in rows
        if any(value.startswith(f"{folder}/") for value in process.environment(row.pid).values())
    ]


if __name__ == "__main__":
    sys.exit(main())
