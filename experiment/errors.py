"""What can go wrong, as one small tree.

    CharterError                 exit  kind
    ├── UsageError                64   usage
    ├── ContractInvalid            1   contract_invalid
    ├── NotFound                   3   not_found          (4 for a log, 1 for other files)
    ├── Busy                       1   busy
    │   ├── Fenced                 1   busy               (another controller took over)
    │   └── OutOfStock             1   busy               (the provider has no such machine now)
    ├── GuardRefused               2   guard_refused
    ├── EvidenceMismatch           2   evidence_mismatch
    │   └── IllegalTransition      2   evidence_mismatch
    ├── ApprovalNeeded             5   approval_needed
    │   └── OwnerNeeded            5   approval_needed    (the account's owner has to act there)
    ├── ApprovalRefused            5   approval_refused
    ├── HostUnreachable           75   host_unreachable
    ├── RemoteStepFailed           1   remote_step_failed (or the exit code the agent gave)
    ├── HostNotStopped             6   host_not_stopped
    ├── Uncertain                  6   uncertain
    ├── Interrupted              130   interrupted
    └── StepTimeout              124   timeout

A class exists where a caller branches on it; everything else is data in attributes.
Exit codes and kinds are those of the interface page and bind.
"""

from __future__ import annotations

from collections.abc import Sequence


class CharterError(Exception):
    """A failure that a person can act on.

    Args:
        what: what failed, in a few words ("upload refused").
        thing: which thing, as the person knows it (a path, a key, an instance).
        expected: what should have been there, if that is the point.
        found: what was there instead.
        hint: the next move.
        details: one line for each further fault found at the same time.
        exit_code: overrides the class's exit code where the interface page says so.
    """

    kind = "error"
    exit_code = 1

    def __init__(
        self,
        what: str,
        thing: str = "",
        *,
        expected: str = "",
        found: str = "",
        hint: str = "",
        details: Sequence[str] = (),
        exit_code: int | None = None,
    ) -> None:
        self.what = what
        self.thing = thing
        self.expected = expected
        self.found = found
        self.hint = hint
        self.details = tuple(details)
        if exit_code is not None:
            self.exit_code = exit_code
        super().__init__(self.line())

    def line(self) -> str:
        """`WHAT: THING: expected …, found …; NEXT MOVE`, without the parts that are empty."""
        against = ", ".join(
            part
            for part in (
                f"expected {self.expected}" if self.expected else "",
                f"found {self.found}" if self.found else "",
            )
            if part
        )
        text = ": ".join(part for part in (self.what, self.thing, against) if part)
        return f"{text}; {self.hint}" if self.hint else text

    def as_json(self) -> dict[str, object]:
        """The object printed under `error` by every `--json` command."""
        body: dict[str, object] = {
            "kind": self.kind,
            "message": self.line(),
            "hint": self.hint,
            "exit_code": self.exit_code,
        }
        if self.details:
            body["details"] = list(self.details)
        return body


class UsageError(CharterError):
    kind = "usage"
    exit_code = 64


class ContractInvalid(CharterError):
    kind = "contract_invalid"


class NotFound(CharterError):
    kind = "not_found"
    exit_code = 3


class Busy(CharterError):
    kind = "busy"


class Fenced(Busy):
    """A newer controller holds the job: this one must do nothing more."""


class OutOfStock(Busy):
    """The provider has no such machine now: nothing was made, and asking later may succeed."""


class GuardRefused(CharterError):
    kind = "guard_refused"
    exit_code = 2


class EvidenceMismatch(CharterError):
    kind = "evidence_mismatch"
    exit_code = 2


class IllegalTransition(EvidenceMismatch):
    """A state was to be entered from the wrong one, or without its evidence."""


class ApprovalNeeded(CharterError):
    kind = "approval_needed"
    exit_code = 5


class OwnerNeeded(ApprovalNeeded):
    """The provider wants the account's owner: a login, a verification, a recharge. Nothing of it is
    ever done for a person."""


class ApprovalRefused(CharterError):
    kind = "approval_refused"
    exit_code = 5


class HostUnreachable(CharterError):
    """The control plane does not answer. It says nothing about the run."""

    kind = "host_unreachable"
    exit_code = 75


class RemoteStepFailed(CharterError):
    kind = "remote_step_failed"


class HostNotStopped(CharterError):
    """The loudest thing Charter prints: money may still be running."""

    kind = "host_not_stopped"
    exit_code = 6


class Uncertain(CharterError):
    kind = "uncertain"
    exit_code = 6


class Interrupted(CharterError):
    kind = "interrupted"
    exit_code = 130


class StepTimeout(CharterError):
    kind = "timeout"
    exit_code = 124
