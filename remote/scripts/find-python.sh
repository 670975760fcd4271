#!/bin/sh
# Prints the absolute path of a usable Python (3.8 or newer, with what the agent needs).
# Order: python3 and python on PATH, then the usual conda folders of GPU images.
# Exit 127, with one line on stderr, when there is none.

usable() {
    command -v "$1" >/dev/null 2>&1 || return 1
    "$1" -I -c 'import sys
sys.version_info >= (3, 8) or sys.exit(1)
import fcntl, hashlib, json, ssl, subprocess, tarfile, zipfile, zlib
print(sys.executable)' 2>/dev/null </dev/null
}

for candidate in python3 python /root/miniconda3/bin/python /opt/conda/bin/python; do
    found=$(usable "$candidate") || continue
    case $found in
        /*)
            printf '%s\n' "$found"
            exit 0
            ;;
    esac
done

echo "error: no usable Python: expected 3.8 or newer as python3 or python on PATH, in /root/miniconda3 or in /opt/conda; install one" >&2
exit 127
