#!/usr/bin/env bash
# Install the system's programs that the whole test suite needs: OpenSSH's server, PostgreSQL and
# ShellCheck. Does nothing where they are; needs root or sudo, and Debian or Ubuntu, where not.
set -euo pipefail

missing=()
PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin
command -v sshd >/dev/null || missing+=(openssh-server)
command -v ssh >/dev/null || missing+=(openssh-client)
command -v shellcheck >/dev/null || missing+=(shellcheck)
command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ||
    missing+=(postgresql)

[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "error: missing: ${missing[*]}; install them by this system's own means, then try again" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        echo "error: missing: ${missing[*]}; as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "Installing system packages: ${missing[*]} (about 60 MB to download, 250 MB on disk)." >&2
environment=(DEBIAN_FRONTEND=noninteractive)
# Where nothing supervises services, none may be left running by the installation.
[ -d /run/systemd/system ] || environment+=(RUNLEVEL=1)
${as_root[@]+"${as_root[@]}"} env "${environment[@]}" apt-get -qq update </dev/null
${as_root[@]+"${as_root[@]}"} env "${environment[@]}" apt-get -qq -y --no-install-recommends \
    install "${missing[@]}" </dev/null >/dev/null
