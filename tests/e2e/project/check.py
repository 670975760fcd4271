"""The run's own verifier: exactly one launch per attempt."""

import os
import sys
from pathlib import Path

launches = (Path(os.environ["AUTODL_RUN_ROOT"]) / "launched.txt").read_text().split()
print(f"{len(launches)} launches")
sys.exit(0 if len(launches) == int(os.environ.get("CHECK_LAUNCHES", "1")) else 3)
