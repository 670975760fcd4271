#!/usr/bin/env bash
# `make demo`: set everything up, then take examples/tiny-grpo through its whole life.
#   YES=1          approve within the contract's bounds instead of asking
#   CHARTER_HOME   where runs and results go (default: .charter in the clone)
set -euo pipefail

cd "$(dirname "$0")/.."
clone=$(pwd -P)
export CHARTER_HOME=${CHARTER_HOME:-$clone/.charter}
charter=.venv/bin/charter

setup/environment.sh controller
setup/environment.sh host

still_running() {
    local code=$?
    echo >&2
    echo "Still running: the Prefect server and two runners of $CHARTER_HOME, on this machine only." >&2
    echo "Stop them:     CHARTER_HOME=$CHARTER_HOME $clone/$charter down" >&2
    exit "$code"
}

.venv-host/bin/python examples/tiny-grpo/make_model.py
trap still_running EXIT
"$charter" up
if [ "${YES:-}" = 1 ]; then
    "$charter" run examples/tiny-grpo/contract.yaml --yes
else
    "$charter" run examples/tiny-grpo/contract.yaml
fi
"$charter" verify tiny-grpo
