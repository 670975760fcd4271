"""`make bench`: every benchmark once, into `benchmarks/results.json`.

python -m benchmarks [NAME …]
"""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import orchestration

BENCHMARKS = {"orchestration": orchestration.measure}
RESULTS = Path(__file__).resolve().parent / "results.json"


def main(names: list[str]) -> int:
    """Measure what is named, or everything; figures of others stay as they were."""
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        print(
            f"error: no such benchmark: {', '.join(unknown)}: "
            f"expected one of {', '.join(BENCHMARKS)}",
            file=sys.stderr,
        )
        return 64
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    known["machine"] = {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    for name in names or BENCHMARKS:
        print(f"measuring {name}", file=sys.stderr)
        known.update(BENCHMARKS[name]())
    RESULTS.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(RESULTS.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
