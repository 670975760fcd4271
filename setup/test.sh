#!/usr/bin/env bash
# `make test`: set everything up, then run pytest with the words given.
#   CHARTER_REQUIRE=1   what is missing fails instead of being skipped by its name
set -euo pipefail

cd "$(dirname "$0")/.."
setup/environment.sh test
setup/environment.sh host
if [ "${CHARTER_REQUIRE:-}" = 1 ]; then
    setup/environment.sh s3
fi
.venv-host/bin/python examples/tiny-grpo/make_model.py
# Two workers: whole lives wait more than they compute. A file's tests stay together, and so does
# what they share (a Prefect server takes half a minute to start).
exec .venv/bin/python -m pytest -n "${CHARTER_TEST_WORKERS:-2}" --dist loadfile \
    --no-loadscope-reorder "$@"
