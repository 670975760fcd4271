# shellcheck shell=bash
# Sourced: sets PYTHON to an interpreter of 3.11 or newer, or ends with a line that says what to do.
#   PYTHON given from outside is taken when it is new enough, and refused when it is not.

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
    if ! new_enough "$PYTHON"; then
        echo "error: PYTHON=$PYTHON: expected Python 3.11 or newer, found $("$PYTHON" --version 2>/dev/null || echo "no such program"); name another one: make demo PYTHON=/path/to/python3" >&2
        exit 127
    fi
else
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if command -v "$candidate" >/dev/null 2>&1 && new_enough "$candidate"; then
            PYTHON=$candidate
            break
        fi
    done
    if [ -z "${PYTHON:-}" ]; then
        echo "error: no Python 3.11 or newer on the PATH (python3 is: $(python3 --version 2>/dev/null || echo none)); install one, or name it: make demo PYTHON=/path/to/python3" >&2
        exit 127
    fi
fi
PYTHON=$(command -v "$PYTHON")
export PYTHON
