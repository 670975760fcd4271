"""Doing one step and answering, whichever way the request came."""

from __future__ import annotations

import errno
import importlib
import sys
import traceback
from typing import Any, Optional, Tuple

from remote.agent.answer import admit_epoch, answered, error_answer, layout_of, ok_answer
from remote.agent.errors import AgentError
from remote.agent.presence import working
from remote.agent.steps import READ, RECORDED, STEPS

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


def answer(step: str, request: Any) -> Tuple[int, Optional[dict[str, Any]]]:
    """Exit code and answer of a step; no answer (None) for a failure that nobody foresaw.

    A known failure has its line on stderr, an unknown one its traceback: a caller must not take it
    for a value.
    """
    try:
        return 0, perform(step, request)
    except AgentError as known:
        error = known
    except OSError as failure:
        if failure.errno not in DISK_HINTS:
            traceback.print_exc()
            return EXIT_UNKNOWN, None
        error = AgentError(
            "remote_step_failed", f"step {step}: {failure}", DISK_HINTS[failure.errno]
        )
    except Exception:  # noqa: BLE001 - whatever it is, the caller gets exit 70 and no answer
        traceback.print_exc()
        return EXIT_UNKNOWN, None
    sys.stderr.write(f"error: {error.message}; {error.hint}\n")
    return error.exit_code, error_answer(request, error)


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
