"""rent: reuse a host or create one, exactly once, at no more than the approved rate."""

from __future__ import annotations

from decimal import Decimal

from experiment import faults
from experiment.errors import (
    ApprovalNeeded,
    CharterError,
    Fenced,
    HostNotStopped,
    RemoteStepFailed,
    Uncertain,
)
from experiment.ledger import Evidence, states
from experiment.money.amounts import Segment, worst_case
from experiment.providers.base import CreateRequest, Instance
from experiment.rentals import Rental, book
from experiment.steps.approve import within_limits
from experiment.steps.session import Session
from experiment.steps.shutdown import confirm_off
from remote.agent.files import canonical_json, sha256_bytes

# How long a paid instance may take to say "running" before it is stopped again.
RUNNING_WITHIN_SECONDS = 600.0


def rent(session: Session) -> Evidence:
    """Rent the host of this attempt.

    The intent, with a unique name, is in the ledger before the provider hears of it; after a
    crash the instance is found by that name. Creating is never repeated blindly.

    Raises:
        ApprovalNeeded: the provider's rate is above the approved one (the instance was stopped
            and released: nothing was on it).
        RemoteStepFailed: the instance never came up; it was stopped.
        HostNotStopped: ... and could not be stopped.
    """
    grant = session.grant
    reused = None if session.is_done("rent") else _reusable(session)
    name = reused.name if reused else f"charter-{session.job}-{session.run_id}-{session.attempt}"
    host = session.run.contract["host"]
    created: list[Instance] = []

    def do(begun: Evidence) -> Evidence:
        if begun["reuse"]:
            return _settle(session, _take_over(session, begun["name"]), reused=True)
        rental = _intend(session, begun["name"])
        if rental.status == book.CLOSED:
            raise RemoteStepFailed(
                "the instance of this run was stopped",
                rental.name,
                expected="a rental that is open",
                found=f"closed by {(rental.receipt or {}).get('by', 'nobody')}",
                hint="charter run CONTRACT starts a new run",
            )
        gpu = session.contract.host.gpus[0]
        instance = session.provider.create(
            CreateRequest(
                name=rental.name,
                gpu_name=gpu.name,
                gpu_count=gpu.count,
                currency=grant.bounds.currency,
                rate=rental.rate,
                image=session.contract.host.image,
                region=session.contract.host.region,
            )
        )
        created.append(instance)
        faults.reached("rent.created")
        return _adopt_or_stop(session, rental, instance)

    def recover(begun: Evidence) -> Evidence | None:
        if begun["reuse"]:
            return None
        instance = session.provider.find(begun["name"])
        if instance is None or (instance.state == "off" and not instance.segments):
            # Never created, or never powered on: creating it (again) is the first effect.
            return None
        return _adopt_or_stop(session, _intend(session, begun["name"]), instance)

    inputs = {"attempt": session.attempt, "host": sha256_bytes(canonical_json(host))}
    try:
        return session.controller.once(
            "rent",
            inputs,
            do,
            recover=recover,
            intent={"name": name, "reuse": reused is not None},
            to=states.RENTED,
            single=True,
        )
    except Fenced:
        _stop_surplus(session, created)
        raise


def _reusable(session: Session) -> Rental | None:
    """This run's own open rental, the instance that the contract names, or a free one that fits."""
    wanted = session.contract.host
    for rental in session.rentals.live():
        if rental.provider != wanted.provider or rental.status != book.OPEN:
            continue
        holders = [run for run in session.rentals.leased(rental.name) if _holds(session, run)]
        mine = holders == [session.run_id]
        named = wanted.reuse is not None and wanted.reuse in (rental.instance, rental.name)
        same = rental.detail.get("request") == _request_digest(session)
        if mine or (not holders and (named or (wanted.reuse is None and same))):
            state = session.provider.status(str(rental.instance)).state
            if state == "running":
                return rental
    return None


def _holds(session: Session, run_id: str) -> bool:
    """Whether the run's lease is live: one that failed leaves its host to the next run of the
    job, which is what it is held for."""
    run = session.ledger.run(run_id)
    failed = run.state == states.FAILED and run.job == session.job
    return not (failed and run_id != session.run_id)


def _take_over(session: Session, name: str) -> Rental:
    for run_id in session.rentals.leased(name):
        if not _holds(session, run_id):
            session.rentals.release_lease(name, run_id)
    bounds = session.grant.bounds
    amount, _ = worst_case(bounds.max_total, bounds.max_hours, bounds.max_price_per_hour)
    session.rentals.lease(name, session.run_id, amount)
    return session.rentals.get(name)


def _request_digest(session: Session) -> str:
    """Hosts are alike when everything that the contract asks of them is."""
    host = {key: value for key, value in session.run.contract["host"].items() if key != "reuse"}
    return sha256_bytes(canonical_json(host))


def _intend(session: Session, name: str) -> Rental:
    bounds = session.grant.bounds
    amount, _ = worst_case(bounds.max_total, bounds.max_hours, bounds.max_price_per_hour)
    cap = min(session.contract.rate_cap(session.contract.host.gpus[0]), bounds.max_price_per_hour)
    return session.rentals.intend(
        name,
        provider=session.contract.host.provider,
        job=session.job,
        run_id=session.run_id,
        currency=bounds.currency,
        rate=cap,
        reserved=amount,
        allowed=lambda: within_limits(session, session.grant),
    )


def _adopt_or_stop(session: Session, rental: Rental, instance: Instance) -> Evidence:
    """Adopt; and where that fails, nothing that was created for this run stays on."""
    try:
        return _adopt(session, rental, instance)
    except (Fenced, HostNotStopped, Uncertain):
        raise
    except CharterError:
        confirm_off(session.provider, instance.id, session.clock, by="could not be taken over")
        raise


def _adopt(session: Session, rental: Rental, instance: Instance) -> Evidence:
    """Write down what is billing before waiting for anything."""
    session.rentals.record(
        rental.name,
        book.OPEN,
        instance=instance.id,
        rate=instance.rate,
        segments=[Segment(instance.rate, start, stop) for start, stop in instance.segments],
        detail={"request": _request_digest(session), "gpu": instance.gpu},
    )
    return _settle(session, session.rentals.get(rental.name), reused=False)


def _settle(session: Session, rental: Rental, *, reused: bool) -> Evidence:
    """Wait until it runs, read its rate, and refuse one above the approved."""
    instance = _running(session, str(rental.instance))
    session.rentals.record(
        rental.name,
        book.OPEN,
        rate=instance.rate,
        segments=[Segment(instance.rate, start, stop) for start, stop in instance.segments],
    )
    cap = min(
        session.contract.rate_cap(session.contract.host.gpus[0]),
        session.grant.bounds.max_price_per_hour,
    )
    if instance.rate > cap:
        _stop(session, rental, release=not reused, why=f"rate {instance.rate} above {cap}")
        raise ApprovalNeeded(
            "rate above the approved one",
            f"instance {instance.id}",
            expected=f"at most {cap} {instance.currency} per hour",
            found=f"{instance.rate} {instance.currency} per hour",
            hint="raise billing.max_price_per_hour and approve again; the instance is off",
        )
    return {
        "provider": rental.provider,
        "name": rental.name,
        "instance": instance.id,
        "rate": str(instance.rate),
        "currency": instance.currency,
        "gpu": instance.gpu,
        "data_root": instance.data_root,
        "started_at": rental.opened_at,
        "reused": reused,
        "involves_ssh": instance.involves_ssh,
    }


def _running(session: Session, instance_id: str) -> Instance:
    give_up = session.clock.monotonic() + RUNNING_WITHIN_SECONDS
    while True:
        instance = session.provider.status(instance_id)
        if instance.state == "running":
            return instance
        ended = instance.state in ("off", "released", "lost")
        if ended or session.clock.monotonic() >= give_up:
            rental = session.rentals.of_run(session.run_id)
            if rental is not None and not ended:
                _stop(session, rental, release=False, why="never came up")
            raise RemoteStepFailed(
                "the instance did not start",
                instance_id,
                expected=f"running within {RUNNING_WITHIN_SECONDS:.0f} s",
                found=instance.state,
                hint="charter run CONTRACT rents another",
            )
        session.clock.sleep(0.1)


def _stop(session: Session, rental: Rental, *, release: bool, why: str) -> None:
    """Off, confirmed, and (nothing is on it) released."""
    session.rentals.record(rental.name, book.STOPPING)
    receipt = confirm_off(session.provider, str(rental.instance), session.clock, by=why)
    segments = [Segment(Decimal(rental.rate), a, b) for a, b in receipt.segments]
    session.rentals.record(
        rental.name, book.CLOSED, receipt=receipt.as_json(), segments=segments, kept=False
    )
    session.rentals.release_lease(rental.name, session.run_id)
    if release:
        session.provider.release(str(rental.instance))


def _stop_surplus(session: Session, created: list[Instance]) -> None:
    """A fenced controller stops what its own create returned, if that is not the recorded one."""
    entry = session.ledger.done(session.run_id, "rent", session.attempt)
    for instance in created:
        if entry is not None and entry["evidence"]["instance"] == instance.id:
            continue
        known = session.provider.find(instance.name)
        if entry is None and known is not None and known.id == instance.id:
            # The newer controller adopts it by the name of the intent: it is no surplus.
            continue
        try:
            confirm_off(session.provider, instance.id, session.clock, by="surplus")
        except HostNotStopped as error:
            raise HostNotStopped(
                "A SURPLUS INSTANCE MAY STILL BE BILLING",
                instance.id,
                expected="off",
                found=str(error),
                hint="stop it in the provider's console now",
            ) from error
