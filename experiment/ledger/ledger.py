"""The append-only, hash-chained record of what happened to every run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from experiment.clock import Clock, SystemClock, iso
from experiment.errors import Busy, Fenced, NotFound
from experiment.evidence.chain import entry_digest
from experiment.ledger import schema, states
from experiment.ledger.database import Database, one_at_a_time
from experiment.paths import Home
from remote.agent.files import canonical_json, sha256_bytes

GENESIS = "0" * 64


@dataclass(frozen=True)
class RunRow:
    """One run as the ledger knows it. `state` is None until the plan is recorded."""

    run_id: str
    job: str
    attempt: int
    state: str | None
    contract: dict[str, Any]
    contract_sha256: str
    base: str
    charter_version: str
    flow_run: str | None
    created_at: str


class Ledger:
    """Runs and their entries. Every other table has a module of its own over the same database."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self.database = database
        self.clock = clock or SystemClock()

    @classmethod
    def open(cls, home: Home, clock: Clock | None = None) -> Ledger:
        """The home's ledger, created or migrated when need be."""
        database = Database(home.ledger_url)
        database.prepare()
        return cls(database, clock)

    @classmethod
    def existing(cls, home: Home, clock: Clock | None = None) -> Ledger:
        """The home's ledger for reading.

        Raises:
            NotFound: there is none yet.
        """
        database = Database(home.ledger_url)
        database.require()
        database.prepare()
        return cls(database, clock)

    # Runs

    def create_run(
        self,
        job: str,
        contract: Mapping[str, Any],
        contract_sha256: str,
        base: str,
        version: str,
        *,
        after: str | None = None,
        alone: bool = False,
    ) -> RunRow:
        """A new run of the job, its id the UTC time, with a suffix where that is taken.

        Args:
            after, alone: with `alone`, only while `after` still is the job's newest run (None:
                while there is none): two callers that decided at once make one run.

        Raises:
            Busy: somebody else made a run of the job meanwhile.
        """
        moment = self.clock.now()
        stem = moment.strftime("%Y%m%d-%H%M%S")
        with self.database.write() as connection:
            one_at_a_time(connection)
            newest = connection.execute(
                sa.select(schema.runs.c.run_id)
                .where(schema.runs.c.job == job)
                .order_by(schema.runs.c.created_at.desc(), schema.runs.c.run_id.desc())
                .limit(1)
            ).scalar_one_or_none()
            if alone and newest != after:
                raise Busy("another run of the job was made meanwhile", f"{job}, run {newest}")
            taken = set(
                connection.execute(
                    sa.select(schema.runs.c.run_id).where(schema.runs.c.run_id.like(f"{stem}%"))
                ).scalars()
            )
            run_id = stem
            suffix = 2
            while run_id in taken:
                run_id = f"{stem}-{suffix}"
                suffix += 1
            connection.execute(
                schema.runs.insert().values(
                    run_id=run_id,
                    job=job,
                    attempt=1,
                    state=None,
                    contract=canonical_json(contract).decode(),
                    contract_sha256=contract_sha256,
                    base=base,
                    charter_version=version,
                    flow_run=None,
                    created_at=iso(moment),
                )
            )
        return self.run(run_id)

    def run(self, run_id: str) -> RunRow:
        """
        Raises:
            NotFound: no such run.
        """
        with self.database.read() as connection:
            row = _run_row(connection, run_id)
        if row is None:
            raise NotFound("no such run", run_id, hint="charter list", exit_code=1)
        return _as_run(row)

    def newest(self, job: str) -> RunRow | None:
        """The job's newest run."""
        found = self.runs(job=job, limit=1)
        return found[0] if found else None

    def resolve(self, name: str) -> RunRow:
        """A run by its id, or a job's newest run.

        Raises:
            NotFound: neither a run id nor a job.
        """
        with self.database.read() as connection:
            row = _run_row(connection, name)
        if row is not None:
            return _as_run(row)
        newest = self.newest(name)
        if newest is None:
            raise NotFound(
                "no such run",
                repr(name),
                expected="a run id or a job name",
                hint="charter list",
                exit_code=1,
            )
        return newest

    def runs(self, job: str | None = None, limit: int | None = None) -> list[RunRow]:
        """Runs, newest first."""
        query = sa.select(schema.runs).order_by(
            schema.runs.c.created_at.desc(), schema.runs.c.run_id.desc()
        )
        if job is not None:
            query = query.where(schema.runs.c.job == job)
        if limit is not None:
            query = query.limit(limit)
        with self.database.read() as connection:
            return [_as_run(row) for row in connection.execute(query).mappings()]

    def set_flow_run(self, run_id: str, flow_run: str) -> None:
        """Remember which flow run walks this run, for the dashboard's address."""
        with self.database.write() as connection:
            connection.execute(
                schema.runs.update().where(schema.runs.c.run_id == run_id).values(flow_run=flow_run)
            )

    # Entries

    def entries(self, run_id: str) -> list[dict[str, Any]]:
        """The run's entries, oldest first, in the shape of `ledger.jsonl`."""
        query = (
            sa.select(schema.entries)
            .where(schema.entries.c.run_id == run_id)
            .order_by(schema.entries.c.seq)
        )
        with self.database.read() as connection:
            return [as_entry(row) for row in connection.execute(query).mappings()]

    def history(self, run_id: str) -> list[str]:
        """The states entered so far, oldest first."""
        with self.database.read() as connection:
            return state_history(connection, run_id)

    def last(self, run_id: str, step: str, attempt: int) -> dict[str, Any] | None:
        """The newest intent or done of a step in one attempt."""
        found = [
            entry
            for entry in self.entries(run_id)
            if entry["step"] == step
            and entry["attempt"] == attempt
            and entry["phase"] in ("intent", "done")
        ]
        return found[-1] if found else None

    def done(self, run_id: str, step: str, attempt: int | None = None) -> dict[str, Any] | None:
        """The newest done entry of a step, in one attempt or in any."""
        query = (
            sa.select(schema.entries)
            .where(
                schema.entries.c.run_id == run_id,
                schema.entries.c.step == step,
                schema.entries.c.phase == "done",
            )
            .order_by(schema.entries.c.seq.desc())
            .limit(1)
        )
        if attempt is not None:
            query = query.where(schema.entries.c.attempt == attempt)
        with self.database.read() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else as_entry(row)

    def done_elsewhere(self, step: str, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """The newest done entry of any run whose step had exactly these inputs."""
        query = (
            sa.select(schema.entries)
            .where(
                schema.entries.c.step == step,
                schema.entries.c.phase == "done",
                schema.entries.c.inputs_sha256 == sha256_bytes(canonical_json(inputs)),
            )
            .order_by(schema.entries.c.at_utc.desc())
            .limit(1)
        )
        with self.database.read() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else as_entry(row)

    def notes(self, run_id: str, step: str) -> list[dict[str, Any]]:
        """The notes of one kind, oldest first."""
        return [e for e in self.entries(run_id) if e["phase"] == "note" and e["step"] == step]

    def note(self, run_id: str, step: str, evidence: Mapping[str, Any]) -> dict[str, Any]:
        """Record something that changes no state and needs no lock (a person's order, an answer).

        It carries the epoch of the moment, whoever holds the job.
        """
        with self.database.write() as connection:
            row = lock_run(connection, run_id)
            epoch = current_epoch(connection, row["job"])
            return append(
                connection, row, step, "note", evidence, epoch=epoch, at=iso(self.clock.now())
            )

    @contextmanager
    def writing(self, run_id: str, epoch: int) -> Iterator[tuple[Connection, RowMapping]]:
        """One transaction of the job's controller, fenced.

        Raises:
            Fenced: another controller holds the job now.
        """
        with self.database.write() as connection:
            row = lock_run(connection, run_id)
            require_epoch(connection, row["job"], epoch)
            yield connection, row

    def close(self) -> None:
        self.database.close()


def lock_run(connection: Connection, run_id: str) -> RowMapping:
    """The run's row, held until the transaction ends, so that two writers get different seqs."""
    row = (
        connection.execute(
            sa.select(schema.runs).where(schema.runs.c.run_id == run_id).with_for_update()
        )
        .mappings()
        .first()
    )
    if row is None:
        raise NotFound("no such run", run_id, hint="charter list", exit_code=1)
    return row


def current_epoch(connection: Connection, job: str) -> int:
    """The epoch of the job's lock, 0 before anyone took it."""
    # Held until the transaction ends: nobody takes the job between this look and the write.
    found = connection.execute(
        sa.select(schema.locks.c.epoch).where(schema.locks.c.job == job).with_for_update(read=True)
    ).scalar_one_or_none()
    return 0 if found is None else int(found)


def require_epoch(connection: Connection, job: str, epoch: int) -> None:
    """
    Raises:
        Fenced: the job's epoch has moved on.
    """
    found = current_epoch(connection, job)
    if found != epoch:
        raise Fenced(
            "this controller was replaced",
            f"job {job}",
            expected=f"epoch {epoch}",
            found=f"epoch {found}",
            hint="another controller goes on with the job; charter status",
        )


def append(
    connection: Connection,
    run: RowMapping,
    step: str,
    phase: str,
    evidence: Mapping[str, Any],
    *,
    epoch: int,
    at: str,
    inputs_sha256: str | None = None,
    to: str | None = None,
    attempt: int | None = None,
) -> dict[str, Any]:
    """Add one entry behind the run's last, entering the state `to` when one is given.

    Raises:
        IllegalTransition: the state may not be entered, or lacks evidence.
    """
    run_id = run["run_id"]
    last = connection.execute(
        sa.select(schema.entries.c.seq, schema.entries.c.sha256)
        .where(schema.entries.c.run_id == run_id)
        .order_by(schema.entries.c.seq.desc())
        .limit(1)
    ).first()
    origin = None
    if to is not None:
        origin = states.check(state_history(connection, run_id), to, evidence, run_id=run_id)
    number = run["attempt"] if attempt is None else attempt
    entry: dict[str, Any] = {
        "seq": 1 if last is None else last.seq + 1,
        "job": run["job"],
        "run_id": run_id,
        "attempt": number,
        "step": step,
        "phase": phase,
        "from": origin,
        "to": to,
        "at_utc": at,
        "epoch": epoch,
        "inputs_sha256": inputs_sha256,
        "evidence": json.loads(canonical_json(evidence)),
        "prev_sha256": GENESIS if last is None else last.sha256,
    }
    entry["sha256"] = entry_digest(entry)
    connection.execute(
        schema.entries.insert().values(
            {**entry, "evidence": canonical_json(entry["evidence"]).decode()}
        )
    )
    if to is not None:
        connection.execute(
            schema.runs.update()
            .where(schema.runs.c.run_id == run_id)
            .values(state=to, attempt=number)
        )
    return entry


def state_history(connection: Connection, run_id: str) -> list[str]:
    """The states that a run entered so far, oldest first."""
    query = (
        sa.select(schema.entries.c.to)
        .where(schema.entries.c.run_id == run_id, schema.entries.c.to.is_not(None))
        .order_by(schema.entries.c.seq)
    )
    return [str(state) for state in connection.execute(query).scalars()]


def _run_row(connection: Connection, run_id: str) -> RowMapping | None:
    query = sa.select(schema.runs).where(schema.runs.c.run_id == run_id)
    return connection.execute(query).mappings().first()


def _as_run(row: RowMapping) -> RunRow:
    return RunRow(**{**row, "contract": json.loads(row["contract"])})


def as_entry(row: RowMapping) -> dict[str, Any]:
    return {**row, "evidence": json.loads(row["evidence"])}
