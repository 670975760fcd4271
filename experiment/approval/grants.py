"""Grants: a person's answer at the billing gate, bound to digests and bounds.

A grant is written to the ledger *before* the flow is resumed: a controller that dies in between
finds it there and asks nobody twice. The first answer counts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from experiment.clock import iso
from experiment.errors import ApprovalRefused, GuardRefused
from experiment.ledger import schema
from experiment.ledger.ledger import Ledger, append, current_epoch, lock_run
from remote.agent.files import canonical_json

GRANTED = "granted"
REFUSED = "refused"


@dataclass(frozen=True)
class Bounds:
    """What may be spent: money per hour and in total, hours, on which GPUs."""

    currency: str
    max_price_per_hour: Decimal
    max_total: Decimal
    max_hours: Decimal
    gpus: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "currency": self.currency,
            "max_price_per_hour": str(self.max_price_per_hour),
            "max_total": str(self.max_total),
            "max_hours": str(self.max_hours),
            "gpus": list(self.gpus),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Bounds:
        return cls(
            body["currency"],
            Decimal(body["max_price_per_hour"]),
            Decimal(body["max_total"]),
            Decimal(body["max_hours"]),
            tuple(body["gpus"]),
        )

    def within(self, other: Bounds) -> bool:
        """Whether nothing here exceeds the other."""
        return (
            self.currency == other.currency
            and self.max_price_per_hour <= other.max_price_per_hour
            and self.max_total <= other.max_total
            and self.max_hours <= other.max_hours
        )


@dataclass(frozen=True)
class Grant:
    grant_id: str
    run_id: str
    attempt: int
    decision: str
    who: str
    channel: str
    at_utc: str
    quote: str
    comment: str
    bounds: Bounds
    digests: dict[str, str]

    def as_evidence(self) -> dict[str, Any]:
        return {
            "grant_id": self.grant_id,
            "decision": self.decision,
            "who": self.who,
            "channel": self.channel,
            "at_utc": self.at_utc,
            "quote": self.quote,
            "comment": self.comment,
            "bounds": self.bounds.as_json(),
            "digests": dict(self.digests),
        }


class Grants:
    """The answers given for runs."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def answer(
        self,
        run_id: str,
        *,
        decision: str,
        who: str,
        channel: str,
        quote: str,
        bounds: Bounds,
        asked: Bounds,
        digests: Mapping[str, str],
        comment: str = "",
    ) -> Grant:
        """Record an answer for the run's present attempt; the first one counts.

        Args:
            quote: what the person was shown.
            bounds: what the person allows.
            asked: what the plan asked for; an answer may lower it, never raise it.
            digests: of contract, bundle and inputs, as they were shown.

        Returns:
            The answer that counts: an earlier one, if somebody was first.

        Raises:
            GuardRefused: the bounds exceed what was asked.
        """
        if decision == GRANTED and not bounds.within(asked):
            raise GuardRefused(
                "approval refused",
                f"run {run_id}",
                expected=f"bounds within {asked.as_json()}",
                found=str(bounds.as_json()),
                hint="raise the bounds in the contract and plan again",
            )
        with self.ledger.database.write() as connection:
            run = lock_run(connection, run_id)
            first = _first(connection, run_id, run["attempt"])
            if first is not None:
                return _as_grant(first)
            grant = Grant(
                grant_id=uuid.uuid4().hex,
                run_id=run_id,
                attempt=run["attempt"],
                decision=decision,
                who=who,
                channel=channel,
                at_utc=iso(self.ledger.clock.now()),
                quote=quote,
                comment=comment,
                bounds=bounds,
                digests=dict(digests),
            )
            self._insert(connection, run, grant)
        return grant

    def current(self, run_id: str, attempt: int) -> Grant | None:
        """The answer that counts for an attempt."""
        with self.ledger.database.read() as connection:
            row = _first(connection, run_id, attempt)
        return None if row is None else _as_grant(row)

    def newest(self, run_id: str) -> Grant | None:
        """The newest grant of any attempt: a resume that waits at its gate is paid by the last."""
        query = (
            sa.select(schema.grants)
            .where(schema.grants.c.run_id == run_id, schema.grants.c.decision == GRANTED)
            .order_by(schema.grants.c.at_utc.desc())
            .limit(1)
        )
        with self.ledger.database.read() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else _as_grant(row)

    def require(self, run_id: str, attempt: int, digests: Mapping[str, str]) -> Grant:
        """The grant, bound to the digests of what is about to be paid for.

        Raises:
            ApprovalRefused: there is none, it was refused, or what it was given for has changed.
        """
        grant = self.current(run_id, attempt)
        if grant is None or grant.decision != GRANTED:
            found = "no answer" if grant is None else f"{grant.decision} by {grant.who}"
            raise ApprovalRefused("not approved", f"run {run_id}", expected="a grant", found=found)
        changed = [key for key, value in digests.items() if grant.digests.get(key) != value]
        if changed:
            raise ApprovalRefused(
                "approval is for something else",
                f"run {run_id}: {', '.join(sorted(changed))}",
                expected=", ".join(str(grant.digests.get(key))[:12] for key in sorted(changed)),
                found=", ".join(digests[key][:12] for key in sorted(changed)),
                hint="plan and approve again: charter run --new",
            )
        return grant

    def _insert(self, connection: Connection, run: RowMapping, grant: Grant) -> None:
        connection.execute(
            schema.grants.insert().values(
                grant_id=grant.grant_id,
                run_id=grant.run_id,
                job=run["job"],
                attempt=grant.attempt,
                decision=grant.decision,
                who=grant.who,
                channel=grant.channel,
                at_utc=grant.at_utc,
                quote=grant.quote,
                comment=grant.comment,
                bounds=canonical_json(grant.bounds.as_json()).decode(),
                digests=canonical_json(grant.digests).decode(),
            )
        )
        # In the chain too, in the same transaction: the answer is evidence from the moment it is
        # given, whoever reads it later.
        append(
            connection,
            run,
            "answer",
            "note",
            grant.as_evidence(),
            epoch=current_epoch(connection, run["job"]),
            at=grant.at_utc,
        )


def _first(connection: Connection, run_id: str, attempt: int) -> RowMapping | None:
    query = (
        sa.select(schema.grants)
        .where(schema.grants.c.run_id == run_id, schema.grants.c.attempt == attempt)
        .order_by(schema.grants.c.at_utc)
        .limit(1)
    )
    return connection.execute(query).mappings().first()


def _as_grant(row: RowMapping) -> Grant:
    return Grant(
        grant_id=row["grant_id"],
        run_id=row["run_id"],
        attempt=row["attempt"],
        decision=row["decision"],
        who=row["who"],
        channel=row["channel"],
        at_utc=row["at_utc"],
        quote=row["quote"],
        comment=row["comment"],
        bounds=Bounds.from_json(json.loads(row["bounds"])),
        digests=json.loads(row["digests"]),
    )
