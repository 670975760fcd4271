"""Requests and answers: what is asked, by whom, and what was already answered.

A request is one JSON object with the envelope
`{"protocol", "request_id", "epoch", "job", "run_id", "attempt", "data_root"}` and the step's own
fields. An answer is the evidence itself, written atomically. The answer of a step with an effect
is recorded under `.charter/answers`: asked again, the agent returns it and does nothing.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any, Callable, Dict

from remote.agent.errors import AgentError, busy, evidence_mismatch, usage
from remote.agent.files import (
    canonical_json,
    read_json_or_none,
    sha256_bytes,
    write_atomic,
    write_json,
)
from remote.agent.layout import JOB_PATTERN, RUN_ID_PATTERN, Layout
from remote.agent.locks import locked

PROTOCOL = 1

# A second call of a step waits for the first one instead of failing: the first may belong to a
# controller that died while an installation runs. The caller's own timeout is the real limit.
STEP_WAIT_SECONDS = 6 * 3600.0
EPOCH_WAIT_SECONDS = 30.0

# Not part of a request's identity: a later controller has a higher epoch, and secrets leave no
# trace in any file, not even a digest.
UNHASHED = ("epoch", "secrets")

# Aliases are evaluated when the module is read, where Python 3.8 has no `dict[…]`.
Json = Dict[str, Any]
Run = Callable[[Json, Layout], Json]
StillTrue = Callable[[Json, Json, Layout], bool]


def now_utc() -> str:
    """The present moment as ISO 8601 in UTC with microseconds and `Z`."""
    moment = datetime.datetime.now(datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def request_sha256(request: dict[str, Any]) -> str:
    """What makes two requests the same: everything but epoch and secrets."""
    return sha256_bytes(
        canonical_json({key: value for key, value in request.items() if key not in UNHASHED})
    )


def layout_of(request: Any, read_only: bool) -> Layout:
    """Check the envelope and say where things lie.

    Args:
        request: the request as parsed.
        read_only: steps that change nothing may leave out job, run_id, attempt and epoch.

    Raises:
        AgentError: usage (exit 64), naming the field, what was expected and what was found.
    """
    if not isinstance(request, dict):
        raise usage(f"request: expected one JSON object, found {type(request).__name__}")
    if request.get("protocol") != PROTOCOL:
        raise usage(
            f"request.protocol: expected {PROTOCOL}, found {request.get('protocol')!r}",
            "controller and agent are of different versions: place this controller's agent",
        )
    data_root = request.get("data_root")
    if not isinstance(data_root, str) or not os.path.isabs(data_root):
        raise usage(f"request.data_root: expected an absolute path, found {data_root!r}")
    if ".." in data_root.split("/") or os.path.normpath(data_root) == "/":
        raise usage(f"request.data_root: expected a folder of its own, found {data_root!r}")
    job = _text(request, "job", JOB_PATTERN, "a slug like 'tiny-grpo'", read_only)
    run_id = _text(request, "run_id", RUN_ID_PATTERN, "YYYYMMDD-HHMMSS", read_only)
    attempt = _count(request, "attempt", 1, read_only)
    _count(request, "epoch", 0, read_only)
    request_id = request.get("request_id")
    if not isinstance(request_id, str) or not 0 < len(request_id) <= 512:
        raise usage(f"request.request_id: expected text, found {request_id!r}")
    return Layout(Path(os.path.normpath(data_root)), job, run_id, attempt)


def answered(
    step: str,
    request: dict[str, Any],
    layout: Layout,
    run: Run,
    still_true: StillTrue | None,
) -> dict[str, Any]:
    """Do an effectful step once, and give its recorded answer ever after.

    Args:
        still_true: says of recorded evidence whether what it describes is still there; when it
            is not (a wiped folder), the step is done anew. None: the answer holds for ever.

    Raises:
        AgentError: busy for a lower epoch; evidence_mismatch when the request id was used for
            another request; whatever the step raises.
    """
    digest = request_sha256(request)
    path = layout.answer(request["request_id"])
    # Before the wait: whoever was replaced is told at once, and the newest is known at once.
    admit_epoch(layout, request["epoch"])
    with locked(layout.lock(f"step/{layout.job}/{step}"), STEP_WAIT_SECONDS, f"step {step}"):
        # And after it: a newer controller may have come meanwhile.
        admit_epoch(layout, request["epoch"])
        recorded = read_json_or_none(path)
        if recorded is not None:
            if recorded.get("request_sha256") != digest:
                raise evidence_mismatch(
                    f"request id was used for another request: {request['request_id']!r}: "
                    f"expected {recorded.get('request_sha256')}, found {digest}",
                    "ask with a new request id (a new attempt or suffix)",
                )
            if still_true is None or still_true(recorded["evidence"], request, layout):
                return dict(recorded, replayed=True)
        answer = ok_answer(request, run(request, layout))
        write_json(path, answer)
        return answer


def admit_epoch(layout: Layout, epoch: int) -> None:
    """Refuse a controller that was replaced, and remember the newest one.

    Raises:
        AgentError: busy, when a higher epoch was seen for this job.
    """
    with locked(layout.lock(f"epoch/{layout.job}"), EPOCH_WAIT_SECONDS, "the epoch record"):
        seen = _read_epoch(layout)
        if epoch < seen:
            raise busy(
                f"another controller took over job {layout.job!r}: "
                f"expected epoch {seen} or higher, found {epoch}",
                "this controller must do nothing more for the job",
            )
        if epoch > seen:
            write_atomic(layout.epoch, f"{epoch}\n".encode("ascii"))


def ok_answer(request: dict[str, Any], evidence: dict[str, Any]) -> dict[str, Any]:
    """The answer of a step that succeeded."""
    return {
        "protocol": PROTOCOL,
        "ok": True,
        "request_id": request["request_id"],
        "request_sha256": request_sha256(request),
        "at_utc": now_utc(),
        "evidence": evidence,
    }


def error_answer(request: Any, error: AgentError) -> dict[str, Any]:
    """The answer of a step that failed in a known way."""
    request_id = request.get("request_id") if isinstance(request, dict) else None
    return {
        "protocol": PROTOCOL,
        "ok": False,
        "request_id": request_id,
        "error": error.as_json(),
    }


def _read_epoch(layout: Layout) -> int:
    try:
        text = layout.epoch.read_text(encoding="ascii")
    except FileNotFoundError:
        return 0
    return int(text)


def _text(request: dict[str, Any], name: str, pattern: Any, wanted: str, optional: bool) -> str:
    value = request.get(name)
    if optional and value in (None, ""):
        return ""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise usage(f"request.{name}: expected {wanted}, found {value!r}")
    return value


def _count(request: dict[str, Any], name: str, least: int, optional: bool) -> int:
    value = request.get(name)
    if optional and value in (None, 0):
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise usage(f"request.{name}: expected a whole number from {least}, found {value!r}")
    return value
