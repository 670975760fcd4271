from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from remote.agent.errors import AgentError
from remote.agent.locks import locked

HOLDER = Path(__file__).parent / "cases" / "hold_lock.py"


def test_second_holder_is_refused_and_the_first_is_named(tmp_path: Path) -> None:
    """busy names the holder's pid; the lock is free again afterwards."""
    path = tmp_path / "l"
    with locked(path, 0, "the thing"):
        refused = pytest.raises(AgentError, match=f"the thing.*pid {os.getpid()}")
        with refused as caught, locked(path, 0.1, "the thing"):
            pass
        assert caught.value.kind == "busy"
    with locked(path, 0, "the thing"):
        pass


def test_a_killed_holder_leaves_nothing_locked(tmp_path: Path) -> None:
    """SIGKILL of the holder frees the lock at once."""
    path = tmp_path / "l"
    holder = subprocess.Popen([sys.executable, str(HOLDER), str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(AgentError), locked(path, 0, "it"):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait(10)
    holder.stdout.close()
    with locked(path, 5, "it"):
        pass
