"""The ledger's tables, and how an older ledger becomes a present one.

One schema serves SQLite (a person) and PostgreSQL (a team). JSON is stored as text in canonical
form, because the digest of an entry is taken over those bytes. Money is stored as text: neither
database keeps a Decimal exactly by the same type.
"""

from __future__ import annotations

import sqlalchemy as sa

SCHEMA_VERSION = 1

metadata = sa.MetaData()

meta = sa.Table(
    "charter_meta",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("job", sa.String(64), nullable=False, index=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("state", sa.String(32), nullable=True),
    sa.Column("contract", sa.Text, nullable=False),
    sa.Column("contract_sha256", sa.String(64), nullable=False),
    sa.Column("base", sa.Text, nullable=False),
    sa.Column("charter_version", sa.String(32), nullable=False),
    sa.Column("flow_run", sa.String(64), nullable=True),
    sa.Column("created_at", sa.String(32), nullable=False),
)

entries = sa.Table(
    "entries",
    metadata,
    sa.Column("run_id", sa.String(64), sa.ForeignKey("runs.run_id"), nullable=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("job", sa.String(64), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("step", sa.String(32), nullable=False),
    sa.Column("phase", sa.String(8), nullable=False),
    sa.Column("from", sa.String(32), nullable=True),
    sa.Column("to", sa.String(32), nullable=True),
    sa.Column("at_utc", sa.String(32), nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("inputs_sha256", sa.String(64), nullable=True),
    sa.Column("evidence", sa.Text, nullable=False),
    sa.Column("prev_sha256", sa.String(64), nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.PrimaryKeyConstraint("run_id", "seq"),
    sa.Index("entries_by_step", "run_id", "attempt", "step", "phase"),
)

rentals = sa.Table(
    "rentals",
    metadata,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("provider", sa.String(32), nullable=False),
    sa.Column("instance", sa.String(128), nullable=True, index=True),
    sa.Column("job", sa.String(64), nullable=False),
    sa.Column("run_id", sa.String(64), nullable=False, index=True),
    sa.Column("status", sa.String(32), nullable=False),
    sa.Column("kept", sa.Boolean, nullable=False),
    sa.Column("rate", sa.Text, nullable=False),
    sa.Column("currency", sa.String(8), nullable=False),
    sa.Column("reserved", sa.Text, nullable=False),
    sa.Column("segments", sa.Text, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("receipt", sa.Text, nullable=True),
    sa.Column("opened_at", sa.String(32), nullable=False),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("rental", sa.String(128), sa.ForeignKey("rentals.name"), nullable=False),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("taken_at", sa.String(32), nullable=False),
    sa.Column("released_at", sa.String(32), nullable=True),
    sa.PrimaryKeyConstraint("rental", "run_id", "taken_at"),
)

grants = sa.Table(
    "grants",
    metadata,
    sa.Column("grant_id", sa.String(64), primary_key=True),
    sa.Column("run_id", sa.String(64), nullable=False, index=True),
    sa.Column("job", sa.String(64), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("decision", sa.String(16), nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("channel", sa.String(32), nullable=False),
    sa.Column("at_utc", sa.String(32), nullable=False),
    sa.Column("quote", sa.Text, nullable=False),
    sa.Column("comment", sa.Text, nullable=False),
    sa.Column("bounds", sa.Text, nullable=False),
    sa.Column("digests", sa.Text, nullable=False),
)

locks = sa.Table(
    "locks",
    metadata,
    sa.Column("job", sa.String(64), primary_key=True),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("holder", sa.Text, nullable=True),
    sa.Column("expires_at", sa.Float, nullable=False),
)
