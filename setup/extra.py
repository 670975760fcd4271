"""Print the requirements of one extra of pyproject.toml, a line each.

    python setup/extra.py host

exit 0; 1 when there is no such extra.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> int:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    if len(sys.argv) != 2 or sys.argv[1] not in extras:
        print(f"usage: extra.py {'|'.join(extras)}", file=sys.stderr)
        return 1
    print("\n".join(extras[sys.argv[1]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
