"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """FAIL asks for something to be done; SKIP says that the check did not apply, and why."""

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True)
class Outcome:
    """One check's answer.

    Attributes:
        name: of the check, the same in every report.
        found: what was there.
        expected: what should have been there; empty where that is plain.
        fix: the next move; empty on PASS.
    """

    name: str
    status: Status
    found: str = ""
    expected: str = ""
    fix: str = ""

    def as_json(self) -> dict[str, str]:
        """The form of `doctor --json`."""
        return {
            "name": self.name,
            "status": self.status.value,
            "detail": self.detail(),
            "fix": self.fix,
        }

    def detail(self) -> str:
        """What was found, against what was expected unless it passed."""
        if self.status is Status.PASS or not self.expected:
            return self.found
        return f"found {self.found}; expected {self.expected}"
