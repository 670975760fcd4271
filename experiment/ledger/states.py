"""The run's states: which may follow which, and what each needs as evidence.

Source: the design page ("The run") and the states of requirement R1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiment.errors import IllegalTransition

PLANNED = "PLANNED"
PREPARED = "PREPARED"
RENTED = "RENTED"
UPLOADED = "UPLOADED"
BOOTSTRAPPING = "BOOTSTRAPPING"
RUNNING = "RUNNING"
PARTIAL = "PARTIAL"
COMPLETED = "COMPLETED"
COLLECTED = "COLLECTED"
VERIFIED = "VERIFIED"
SHUTDOWN = "SHUTDOWN"
FAILED = "FAILED"

FOLLOWERS: dict[str | None, frozenset[str]] = {
    None: frozenset({PLANNED}),
    PLANNED: frozenset({PREPARED, FAILED}),
    PREPARED: frozenset({RENTED, FAILED}),
    RENTED: frozenset({UPLOADED, FAILED}),
    UPLOADED: frozenset({BOOTSTRAPPING, FAILED}),
    BOOTSTRAPPING: frozenset({RUNNING, FAILED}),
    RUNNING: frozenset({PARTIAL, COMPLETED, FAILED}),
    PARTIAL: frozenset({RUNNING, COMPLETED, COLLECTED, FAILED}),
    COMPLETED: frozenset({COLLECTED, PARTIAL, FAILED}),
    COLLECTED: frozenset({VERIFIED, COLLECTED, FAILED}),
    VERIFIED: frozenset({SHUTDOWN}),
    FAILED: frozenset({PREPARED, COLLECTED, SHUTDOWN}),
    SHUTDOWN: frozenset(),
}

# What an entry must carry, and not empty, before its state may be entered.
EVIDENCE: dict[str, tuple[str, ...]] = {
    PLANNED: ("contract_sha256", "worst_case"),
    PREPARED: ("payload_sha256", "tree_sha256", "manifest_sha256"),
    RENTED: ("provider", "instance", "rate", "gpu"),
    UPLOADED: ("files",),
    BOOTSTRAPPING: ("python", "project_dir"),
    RUNNING: ("pid", "start", "argv", "log"),
    PARTIAL: ("verdict",),
    COMPLETED: ("verdict", "exit_record", "outputs"),
    COLLECTED: ("archive_sha256", "inventory_sha256"),
    VERIFIED: ("checked", "verifier"),
    SHUTDOWN: ("receipt",),
    FAILED: ("error",),
}


def may_follow(history: Sequence[str], to: str) -> bool:
    """Whether `to` may be entered next, evidence aside."""
    return to in FOLLOWERS[history[-1] if history else None]


def check(
    history: Sequence[str], to: str, evidence: Mapping[str, object], *, run_id: str
) -> str | None:
    """The state that `to` is entered from.

    Args:
        history: the states entered so far, oldest first.
        to: the state to enter.
        evidence: what the entry carries.
        run_id: for the message.

    Raises:
        IllegalTransition: `to` may not follow, or its evidence is missing.
    """
    current = history[-1] if history else None
    allowed = FOLLOWERS[current]
    if to not in allowed:
        raise IllegalTransition(
            "transition refused",
            f"run {run_id}, {current} -> {to}",
            expected="one of " + ", ".join(sorted(allowed)) if allowed else "no further state",
            found=to,
        )
    missing = [key for key in EVIDENCE[to] if not evidence.get(key)]
    if missing:
        raise IllegalTransition(
            "transition refused",
            f"run {run_id}, {current} -> {to}",
            expected="evidence " + ", ".join(EVIDENCE[to]),
            found="nothing under " + ", ".join(missing),
        )
    if to == VERIFIED and not completed_before_collection(history):
        raise IllegalTransition(
            "transition refused",
            f"run {run_id}, {current} -> {to}",
            expected="a COMPLETED run",
            found="a salvage of a run that did not complete",
            hint="resume the run: a salvage stays COLLECTED",
        )
    if to == SHUTDOWN and current == FAILED and not evidence.get("order"):
        raise IllegalTransition(
            "transition refused",
            f"run {run_id}, {current} -> {to}",
            expected="a person's order",
            found="none",
            hint="charter shutdown RUN",
        )
    return current


def completed_before_collection(history: Sequence[str]) -> bool:
    """Whether the state that was collected was COMPLETED (a salvage of less is never verified)."""
    for state in reversed(history):
        if state not in (COLLECTED, VERIFIED, SHUTDOWN):
            return state == COMPLETED
    return False
