"""The one failure that a step reports as a value: what failed, which thing, and the next move."""

from __future__ import annotations

from typing import Any


class AgentError(Exception):
    """A failure that the agent expected. It becomes the answer's `error` object.

    Args:
        kind: one of the error kinds of the interface page (`guard_refused`, `busy`, …).
        message: one line: what failed, which thing, expected against found.
        hint: the next move; may be empty.
        exit_code: the process's exit code, 1 to 255.
    """

    def __init__(self, kind: str, message: str, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def as_json(self) -> dict[str, Any]:
        """The `error` object of an answer."""
        return {
            "kind": self.kind,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


def usage(message: str, hint: str = "") -> AgentError:
    """The request itself is wrong: nothing was done. Exit 64."""
    return AgentError("usage", message, hint, 64)


def guard_refused(message: str, hint: str = "") -> AgentError:
    """A rule forbids the step: nothing was done. Exit 2."""
    return AgentError("guard_refused", message, hint, 2)


def evidence_mismatch(message: str, hint: str = "") -> AgentError:
    """What is there is not what was recorded or promised. Exit 2."""
    return AgentError("evidence_mismatch", message, hint, 2)


def busy(message: str, hint: str = "") -> AgentError:
    """Somebody else holds what the step needs. Exit 1."""
    return AgentError("busy", message, hint, 1)
