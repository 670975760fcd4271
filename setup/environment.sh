#!/usr/bin/env bash
# Build, or bring up to date, one of the clone's environments. Prints nothing when there is nothing to do.
#
#   setup/environment.sh controller   .venv       charter and Prefect
#   setup/environment.sh test         .venv       and the tools of `make test` and `make lint`
#   setup/environment.sh s3           .venv       and the S3 server of the store's tests
#   setup/environment.sh host         .venv-host  torch, trl and the rest of a GPU host
#
# Environment: PYTHON, an interpreter of 3.11 or newer; TORCH_INDEX_URL, an index that has the build
# of torch you want. Versions come from constraints.txt. A stamp, written last, tells the next call
# that all is done; without it (an interrupted set-up) the call goes on where that one stopped.
set -euo pipefail

usage() {
    echo "usage: setup/environment.sh controller|test|s3|host" >&2
    exit 64
}

[ $# -eq 1 ] || usage
part=$1
cd "$(dirname "$0")/.."
clone=$(pwd -P)
# shellcheck source=setup/python.sh
. setup/python.sh

torch_pin=$(sed -n 's/^torch==//p' constraints.txt)

case $part in
controller) folder=.venv what="Charter and Prefect" download=120 disk=500 ;;
test) folder=.venv what="the tools of the tests (pytest, mypy, ruff)" download=40 disk=150 ;;
s3) folder=.venv what="an S3 server for the tests" download=60 disk=150 ;;
host) folder=.venv-host what="the training stack (torch, transformers, trl, peft, bitsandbytes)" download=0 disk=0 ;;
*) usage ;;
esac

stamp=$folder/.charter-$part
fingerprint=$(
    cat pyproject.toml constraints.txt setup/environment.sh | cksum
    "$PYTHON" --version
    echo "$clone ${TORCH_INDEX_URL:-}"
)

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$fingerprint" ] && "$folder/bin/python" -c '' 2>/dev/null; then
    exit 0
fi

# Which torch the index in use has for this machine: +cpu where offered, else its only one.
torch_build() {
    if [ -n "${TORCH_INDEX_URL:-}" ]; then
        echo chosen
    elif [ "$(uname -s)" != Linux ] || [ "$(uname -m)" != x86_64 ]; then
        echo default
    else
        # Read whole before it is searched: a closed pipe would look like an index without it.
        local offered
        offered=$("$folder/bin/python" -m pip index versions torch 2>/dev/null || true)
        case $offered in
        *"$torch_pin+cpu"*) echo cpu ;;
        *) echo cuda ;;
        esac
    fi
}

need_space() {
    local free
    free=$(df -Pm "$clone" | awk 'NR == 2 { print $4 }')
    if [ "$free" -lt "$1" ]; then
        echo "error: set-up: $clone: expected $1 MB free, found $free MB; free some space, or clone to a larger disk" >&2
        exit 1
    fi
}

# A usable virtual environment: made anew when it is absent, broken, or from another place or Python.
make_folder() {
    local origin=$folder/.charter-origin made
    made="$clone $("$PYTHON" --version)"
    if "$folder/bin/python" -m pip --version >/dev/null 2>&1 &&
        { [ ! -f "$origin" ] || [ "$(cat "$origin")" = "$made" ]; }; then
        echo "$made" >"$origin"
        return
    fi
    rm -rf "$folder"
    if ! "$PYTHON" -m venv "$folder"; then
        rm -rf "$folder"
        echo "error: $PYTHON cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 1
    fi
    echo "$made" >"$origin"
}

pip() {
    local loud=-qq
    [ ! -t 2 ] || loud=--progress-bar=on # somebody watches: show the downloads
    "$folder/bin/python" -m pip --disable-pip-version-check "$1" "$loud" "${@:2}"
}

announce() {
    need_space "$disk"
    echo "Installing $what into $clone/$folder: about $download MB to download, $disk MB on disk." >&2
}

install_host() {
    local build torch="torch==$torch_pin"
    build=$(torch_build)
    download=420 disk=1700
    case $build in
    cpu) torch="torch==$torch_pin+cpu" what="$what, CPU build of torch" ;;
    cuda) download=3200 disk=7500 what="$what, CUDA build of torch (the index in use has no CPU build; TORCH_INDEX_URL may name one that has)" ;;
    chosen) what="$what, torch from TORCH_INDEX_URL (sizes are of a CPU build)" ;;
    esac
    announce
    if [ "$build" = chosen ]; then
        pip install --no-deps --index-url "$TORCH_INDEX_URL" "$torch"
    else
        pip install -c constraints.txt "$torch"
    fi
    # What pyproject.toml lists as the extra `host`, without Charter itself: a host does not have it.
    "$folder/bin/python" setup/extra.py host >"$folder/.charter-requirements"
    pip install -c constraints.txt -r "$folder/.charter-requirements"
}

install_controller() {
    local extra=${1:-}
    announce
    pip install -c constraints.txt setuptools
    pip install -c constraints.txt --no-build-isolation --editable ".$extra"
}

make_folder
rm -f "$stamp"
case $part in
controller) install_controller ;;
test) install_controller '[test]' ;;
s3) install_controller '[s3]' ;;
host) install_host ;;
esac
echo "$fingerprint" >"$stamp"
