#!/usr/bin/env bash
# `make lint`: style, types and shell scripts, the same here and in CI.
set -euo pipefail

cd "$(dirname "$0")/.."
setup/environment.sh test
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
# The agent meets whatever Python a host has; 3.10 is the oldest that mypy still reads.
.venv/bin/mypy --python-version 3.10 -p remote.agent
if command -v shellcheck >/dev/null 2>&1; then
    find setup remote/scripts .ci -type f \( -name '*.sh' -o -path .ci/run \) -print0 |
        xargs -0 shellcheck -x
elif [ "${CHARTER_REQUIRE:-}" = 1 ]; then
    echo "error: shellcheck: not on this machine, and CHARTER_REQUIRE=1; setup/system.sh installs it" >&2
    exit 1
else
    echo "skipped: shellcheck is not on this machine" >&2
fi
