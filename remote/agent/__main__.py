"""The host's program: `python3 -I agent.pyz STEP REQUEST.json RESPONSE.json`.

Reads one request, does one step, writes one answer, atomically. No stdin. stdout is empty, except
for `archive`, which streams the archive there; stderr is for people.

Exit codes: 0 done, the answer is in RESPONSE.json · the error's own code, likewise with an answer
(`"ok": false`) · 64 wrong arguments · 70 an unknown failure: a traceback on stderr and no answer ·
69 a Python older than 3.8.

A request that carries secrets is removed as soon as it is read.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from typing import Any

from remote.agent.answer import admit_epoch, answered, error_answer, layout_of, ok_answer
from remote.agent.errors import AgentError, usage
from remote.agent.files import read_json, write_json
from remote.agent.presence import working
from remote.agent.steps import PROGRAMS, READ, RECORDED, STEPS

EXIT_USAGE = 64
EXIT_UNKNOWN = 70

# What the host's disk can do to any step, and the next move. Other system errors are unknown.
DISK_HINTS = {
    errno.ENOSPC: "free space on that disk, then repeat",
    errno.EDQUOT: "free space within the quota, then repeat",
    errno.EACCES: "see that the user on the host owns that path",
    errno.EPERM: "see that the user on the host owns that path",
    errno.EROFS: "that disk is read-only: mount it anew, or take another host",
    errno.ENOTDIR: "move away the file that stands where a folder belongs",
    errno.EIO: "that disk fails: take another host",
}


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in PROGRAMS:
        program = importlib.import_module(PROGRAMS[given[0]])
        return int(program.main(given[1:]))
    if len(given) != 3 or given[0] not in STEPS:
        sys.stderr.write(
            "error: usage: agent.pyz STEP REQUEST.json RESPONSE.json, STEP one of "
            f"{' '.join(sorted(STEPS))}; found {' '.join(given)!r}\n"
        )
        return EXIT_USAGE
    step, request_path, response_path = given
    try:
        return _answer(step, request_path, response_path)
    except Exception:  # noqa: BLE001 - whatever it is, the caller gets exit 70 and no answer
        # An unknown failure is a traceback and no answer: a caller must not take it for a value.
        traceback.print_exc()
        return EXIT_UNKNOWN


def _answer(step: str, request_path: str, response_path: str) -> int:
    request: Any = None
    try:
        request = _read_request(request_path)
        response = perform(step, request)
        write_json(response_path, response)
        return 0
    except AgentError as known:
        error = known
    except OSError as failure:
        if failure.errno not in DISK_HINTS:
            raise
        error = AgentError(
            "remote_step_failed", f"step {step}: {failure}", DISK_HINTS[failure.errno]
        )
    sys.stderr.write(f"error: {error.message}; {error.hint}\n")
    write_json(response_path, error_answer(request, error))
    return error.exit_code


def perform(step: str, request: Any) -> dict[str, Any]:
    """Do one step and give its answer, `{"ok": true, …}`.

    Raises:
        AgentError: every known failure.
    """
    where = STEPS[step]
    layout = layout_of(request, read_only=where.kind == READ)
    module = importlib.import_module(where.module)
    run = getattr(module, where.function)
    with working(step, layout):
        if where.kind == RECORDED:
            return answered(step, request, layout, run, getattr(module, "still_true", None))
        if where.kind != READ:
            admit_epoch(layout, request["epoch"])
        return ok_answer(request, run(request, layout))


def _read_request(path: str) -> Any:
    try:
        request = read_json(path)
    except FileNotFoundError:
        raise usage(f"request file is missing: {path!r}", "write the request first") from None
    except ValueError as error:
        raise usage(f"request file is damaged: {error}", "write the request again") from None
    if isinstance(request, dict) and request.get("secrets"):
        os.unlink(path)
    return request


if __name__ == "__main__":
    sys.exit(main())
