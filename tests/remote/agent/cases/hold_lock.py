"""Holds the lock file argv[1] until it is killed; prints `held` when it has it."""

import sys
import time
from pathlib import Path

from remote.agent.locks import locked

with locked(Path(sys.argv[1]), 0, "the lock"):
    print("held", flush=True)
    time.sleep(60)
