"""approve: what is asked at the gate, and the answer as evidence."""

from __future__ import annotations

import getpass
from decimal import Decimal

from experiment.approval.grants import GRANTED, Bounds, Grant
from experiment.errors import ContractInvalid
from experiment.ledger import Evidence
from experiment.money.amounts import affordable_seconds, shown, worst_case
from experiment.money.deadlines import deadlines
from experiment.money.limits import load_limits
from experiment.steps.session import Session


def asked(session: Session) -> Bounds:
    """The bounds that the contract asks for."""
    billing = session.contract.billing
    gpus = session.contract.host.gpus
    return Bounds(
        currency=billing.currency,
        max_price_per_hour=max(session.contract.rate_cap(gpu) for gpu in gpus),
        max_total=Decimal(billing.max_total),
        max_hours=Decimal(billing.max_hours),
        gpus=tuple(f"{gpu.count} x {gpu.name}" for gpu in gpus),
    )


def quote(session: Session) -> str:
    """What a person is shown before answering, as Markdown."""
    bounds = asked(session)
    amount, hours = worst_case(bounds.max_total, bounds.max_hours, bounds.max_price_per_hour)
    bundle = session.recorded("bundle")
    plan = session.recorded("plan", any_attempt=True)
    digests = session.digests()
    spent = session.rentals.spent(session.run_id)
    rows = [
        ("job", f"{session.job}, run {session.run_id}, attempt {session.attempt}"),
        ("host", f"{session.contract.host.provider}: {' or '.join(bounds.gpus)}"),
        ("rate cap", f"{shown(bounds.max_price_per_hour)} {bounds.currency} per hour"),
        ("total cap", f"{shown(bounds.max_total)} {bounds.currency}"),
        ("hours cap", f"{bounds.max_hours} h"),
        ("worst case", f"{shown(amount)} {bounds.currency} in {hours:.2f} h"),
        ("spent so far", f"{shown(spent)} {bounds.currency}"),
        ("bundle", f"{bundle['project_file_count']} files, {bundle['payload_bytes']} bytes"),
        ("contract digest", digests["contract"]),
        ("bundle digest", digests["bundle"]),
        ("inputs digest", digests["inputs"]),
        ("afterwards", f"{session.contract.billing.shutdown} the host"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    warnings = "".join(f"\n- {warning['message']}" for warning in plan["warnings"])
    return f"| | |\n|---|---|\n{table}\n" + (f"\nWarnings:{warnings}\n" if warnings else "")


def preauthorise(session: Session) -> Grant | None:
    """The contract's own approval, where it says so; None where a person has to answer.

    Raises:
        ContractInvalid: `preauthorised` without a GPU and caps in the contract.
    """
    if session.contract.billing.approval != "preauthorised":
        return None
    bounds = asked(session)
    if bounds.max_price_per_hour <= 0 and session.contract.host.provider != "local":
        raise ContractInvalid(
            "approval refused",
            "billing.approval: preauthorised",
            expected="host.gpus and billing.max_price_per_hour in the contract",
            found="no price cap",
        )
    return session.grants.answer(
        session.run_id,
        decision=GRANTED,
        who=f"contract {session.run.contract_sha256[:12]} ({getpass.getuser()})",
        channel="contract",
        quote=quote(session),
        bounds=bounds,
        asked=bounds,
        digests=session.digests(),
    )


def approve(session: Session) -> Evidence:
    """Take the answer up: check it against what is about to be paid for, and the home's limits.

    Raises:
        ApprovalRefused: no grant, a refusal, or a grant for something else.
        GuardRefused: `limits.yaml` allows less.
    """
    grant = session.grant
    if not session.is_done("approve"):
        _must_buy_a_training(session, grant)
        within_limits(session, grant)
    inputs = {"grant": grant.grant_id, "digests": session.digests()}
    return session.controller.once("approve", inputs, lambda _begun: grant.as_evidence())


def within_limits(session: Session, grant: Grant) -> None:
    """The home's caps for everyone. Looked at here for a person's sake, and again where the money
    is reserved, while nobody else can reserve.

    Raises:
        GuardRefused: `limits.yaml` allows less.
    """
    bounds = grant.bounds
    amount, _ = worst_case(bounds.max_total, bounds.max_hours, bounds.max_price_per_hour)
    load_limits(session.home.limits).check(
        job=session.job,
        currency=bounds.currency,
        asked=max(amount - session.rentals.spent(session.run_id), Decimal(0)),
        job_spent=session.rentals.spent_by_job(session.job, bounds.currency),
        day_spent=session.rentals.committed(
            session.clock.now().strftime("%Y-%m-%d"), bounds.currency
        ),
    )


def _must_buy_a_training(session: Session, grant: Grant) -> None:
    """Refused before renting: money that would not outlast the winding down."""
    held = session.rentals.of_job_held(session.job)
    rental = held.name if held is not None else ""
    deadlines(
        affordable_seconds(
            grant.bounds.max_total,
            session.rentals.spent(session.run_id),
            session.rentals.reserved_elsewhere(session.job, rental),
            grant.bounds.max_price_per_hour,
            grant.bounds.max_hours,
        ),
        wind_down(session),
    )


def wind_down(session: Session) -> int:
    """Seconds between the trainer's last moment and the host's, as the plan printed them."""
    return int(session.recorded("plan", any_attempt=True)["wind_down_seconds"])
