# shellcheck shell=sh
# Login shells start in the instance's own home, and the base environment's python stays first
# on PATH (the system's profile has reset it).
cd "$HOME" || exit
PATH="$CHARTER_BASE_BIN:$PATH"
export PATH
