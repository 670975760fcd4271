"""Exactly once, whatever dies: `once` with its intent, effect and recovery.

The key is (run, attempt, step). What was recorded is returned; an intent without an end is asked
after (`recover`) before anything is done again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from experiment import faults
from experiment.clock import iso
from experiment.errors import EvidenceMismatch, IllegalTransition
from experiment.ledger import schema, states
from experiment.ledger.ledger import Ledger, append, as_entry, state_history
from remote.agent.files import canonical_json, sha256_bytes

Evidence = dict[str, Any]


class Mismatch(EvidenceMismatch):
    """A single step was recorded with other inputs: a second effect is refused."""


@dataclass(frozen=True)
class Controller:
    """The right to write for one run: its ledger, its attempt, and the epoch of the held lock."""

    ledger: Ledger
    run_id: str
    attempt: int
    epoch: int

    def once(
        self,
        step: str,
        inputs: Mapping[str, Any],
        do: Callable[[Evidence], Evidence],
        *,
        recover: Callable[[Evidence], Evidence | None] | None = None,
        intent: Mapping[str, Any] | None = None,
        to: str | Callable[[Evidence], str] | None = None,
        single: bool = False,
    ) -> Evidence:
        """Do the step, unless it is done; ask after it, if it was begun.

        Args:
            step: the step's name.
            inputs: frozen digests and the host's incarnation. Never a time, a rate or a deadline:
                those differ after a crash and would make a second effect look like a new one.
            do: makes the effect; gets the intent's evidence, returns the step's.
            recover: looks for the effect of an intent that has no end; None means that it never
                happened, and the step is done now.
            intent: what recovery needs to find the effect (a unique name, a request id).
            to: the state that the step enters, or how its evidence decides it. A step done again
                for other inputs (the host was rebuilt) enters none: the run is past it.
            single: other inputs than the recorded ones raise instead of doing it again.

        Returns:
            The step's evidence, recorded.

        Raises:
            Mismatch: a single step was recorded with other inputs.
            Fenced: another controller holds the job.
        """
        digest = sha256_bytes(canonical_json(inputs))
        faults.reached(f"{step}.before")
        with self.ledger.writing(self.run_id, self.epoch) as (connection, run):
            last = self._last(connection, step)
            recorded = self._recorded(last, step, digest, single)
            if recorded is not None:
                return recorded
            again = self._was_done(connection, step)
            pending = last is not None and last["phase"] == "intent"
            if pending and last is not None and last["inputs_sha256"] == digest:
                begun: Evidence = last["evidence"]
            else:
                pending = False
                begun = dict(intent or {})
                self._must_lead_to(connection, step, None if again else to)
                self._append(connection, run, step, "intent", begun, digest)
        faults.reached(f"{step}.intent")
        found = recover(begun) if pending and recover is not None else None
        if found is None:
            # The first check is old by now: recovery may have taken minutes.
            with self.ledger.writing(self.run_id, self.epoch):
                pass
            found = do(begun)
        faults.reached(f"{step}.effect")
        with self.ledger.writing(self.run_id, self.epoch) as (connection, run):
            state = to(found) if callable(to) else to
            entry = self._append(
                connection, run, step, "done", found, digest, to=None if again else state
            )
        faults.reached(f"{step}.after")
        evidence: Evidence = entry["evidence"]
        return evidence

    def enter(self, step: str, to: str, evidence: Mapping[str, Any]) -> Evidence:
        """Record a state that no effect of ours leads to (the trainer failed, say)."""
        with self.ledger.writing(self.run_id, self.epoch) as (connection, run):
            entry = self._append(connection, run, step, "note", evidence, None, to=to)
        recorded: Evidence = entry["evidence"]
        return recorded

    def note(self, step: str, evidence: Mapping[str, Any]) -> None:
        """Record something of this controller's that changes no state."""
        with self.ledger.writing(self.run_id, self.epoch) as (connection, run):
            self._append(connection, run, step, "note", evidence, None)

    def _recorded(
        self, last: dict[str, Any] | None, step: str, digest: str, single: bool
    ) -> Evidence | None:
        if last is None:
            return None
        if last["inputs_sha256"] == digest:
            done: Evidence | None = last["evidence"] if last["phase"] == "done" else None
            return done
        if single:
            raise Mismatch(
                "step refused",
                f"{step} of run {self.run_id}, attempt {self.attempt}",
                expected=f"the recorded inputs {str(last['inputs_sha256'])[:12]}",
                found=f"other inputs {digest[:12]}",
                hint="a second effect is never made; resume opens the next attempt",
            )
        return None

    def _last(self, connection: Connection, step: str) -> dict[str, Any] | None:
        query = (
            sa.select(schema.entries)
            .where(
                schema.entries.c.run_id == self.run_id,
                schema.entries.c.attempt == self.attempt,
                schema.entries.c.step == step,
                schema.entries.c.phase.in_(("intent", "done")),
            )
            .order_by(schema.entries.c.seq.desc())
            .limit(1)
        )
        row = connection.execute(query).mappings().first()
        return None if row is None else as_entry(row)

    def _must_lead_to(
        self, connection: Connection, step: str, to: str | Callable[[Evidence], str] | None
    ) -> None:
        """Before the effect: a step that could not be recorded afterwards is not begun."""
        history = state_history(connection, self.run_id)
        if isinstance(to, str) and not states.may_follow(history, to):
            raise IllegalTransition(
                "step refused",
                f"{step} of run {self.run_id}",
                expected=f"a state that {to} may follow",
                found=history[-1] if history else "no state",
            )

    def _was_done(self, connection: Connection, step: str) -> bool:
        query = sa.select(schema.entries.c.seq).where(
            schema.entries.c.run_id == self.run_id,
            schema.entries.c.attempt == self.attempt,
            schema.entries.c.step == step,
            schema.entries.c.phase == "done",
        )
        return connection.execute(query.limit(1)).first() is not None

    def _append(
        self,
        connection: Connection,
        run: RowMapping,
        step: str,
        phase: str,
        evidence: Mapping[str, Any],
        digest: str | None,
        *,
        to: str | None = None,
    ) -> dict[str, Any]:
        return append(
            connection,
            run,
            step,
            phase,
            evidence,
            epoch=self.epoch,
            at=iso(self.ledger.clock.now()),
            inputs_sha256=digest,
            to=to,
            attempt=self.attempt,
        )
