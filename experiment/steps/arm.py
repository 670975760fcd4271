"""arm: the agent on the host and its watchdog running, before anything is uploaded."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from experiment.clock import parse_iso
from experiment.errors import CharterError, Fenced, HostUnreachable, RemoteStepFailed, Uncertain
from experiment.hosts.agent_door import AgentDoor, find_python
from experiment.hosts.connect import connect as connect_host
from experiment.ledger import Evidence
from experiment.money.amounts import affordable_seconds
from experiment.money.deadlines import Deadlines, deadlines
from experiment.steps.approve import wind_down
from experiment.steps.session import Session
from experiment.steps.shutdown import money_stop

# Paid, running and not armed for longer than this: stopped through the provider.
ARMED_WITHIN_SECONDS = 600.0
_RETRY_SECONDS = 0.2
_SLOWEST_RETRY_SECONDS = 5.0
_LEAST_SECONDS = 60.0


def arm(session: Session) -> Evidence:
    """Place the agent, compare its hash, start the watchdog with its two deadlines.

    Done again whenever the host's incarnation (instance, boot, data disk) is another one.

    Raises:
        RemoteStepFailed: not armed in time; the host was stopped.
        HostNotStopped: ... and could not be stopped.
    """
    try:
        return _within_time(session)
    except (Fenced, Uncertain):
        # The host is another controller's now, or nobody knows: neither is ours to stop.
        raise
    except CharterError as error:
        if session.is_done("arm"):
            # It has a watchdog from before: that one decides.
            raise
        money_stop(session, session.rental, by=f"could not be armed: {error.what}")
        raise RemoteStepFailed(
            "the host could not be armed and was stopped",
            str(session.rental.instance),
            found=error.line(),
            hint="charter run CONTRACT rents another",
            exit_code=error.exit_code,
        ) from error


def _within_time(session: Session) -> Evidence:
    """Try until it is armed or ten minutes of paid time have passed: "running" is not "sshd
    answers", and a link may break in between."""
    opened = parse_iso(session.rental.opened_at)
    passed = (session.clock.now() - opened).total_seconds()
    # A host that was taken over has been open for longer; it gets a minute.
    give_up = session.clock.monotonic() + max(ARMED_WITHIN_SECONDS - passed, _LEAST_SECONDS)
    pause = _RETRY_SECONDS
    while True:
        try:
            return _arm(session)
        except HostUnreachable:
            if session.clock.monotonic() >= give_up:
                raise
        session.clock.sleep(pause)
        pause = min(pause * 2, _SLOWEST_RETRY_SECONDS)


def _arm(session: Session) -> Evidence:
    instance = session.instance()
    if instance.state in ("off", "released", "lost"):
        raise RemoteStepFailed(
            "the host went away before it was armed",
            str(session.rental.instance),
            expected="running",
            found=instance.state,
            hint="charter run CONTRACT rents another",
        )
    if instance.endpoint is None:
        raise HostUnreachable("no address yet", instance.id, found=instance.state)
    host = connect_host(instance.endpoint, session.home)
    door = AgentDoor(host, session.data_root, find_python(host))
    hello = door.place()
    incarnation = {
        "instance": str(session.rental.instance),
        "boot_id": str(hello["boot_id"]),
        "marker": str(hello["marker"]),
    }
    inputs = {**incarnation, "grant": session.grant.grant_id}

    def do(_begun: Evidence) -> Evidence:
        bought = bought_deadlines(session)
        # The suffix ties the agent's answer to this boot: after a power cycle it is asked anew.
        armed = door.call(
            "arm",
            {"watchdog": watchdog_request(session, bought)},
            ref=session.request(incarnation["boot_id"][:8]),
            timeout=60,
        )
        return {
            "incarnation": incarnation,
            "agent_sha256": hello["agent_sha256"],
            "agent_python": door.python,
            "protocol": hello["protocol"],
            "watchdog": armed["watchdog"],
            "deadlines": armed["deadlines"],
            "stop_argv": armed["stop_argv"],
            "self_check": armed["self_check"],
        }

    return session.controller.once("arm", inputs, do)


def bought_deadlines(session: Session) -> Deadlines:
    """What the grant's money and hours still buy on this host."""
    rental = session.rental
    bounds = session.grant.bounds
    spent, seconds = session.rentals.paid(session.run_id)
    return deadlines(
        affordable_seconds(
            bounds.max_total,
            spent,
            session.rentals.reserved_elsewhere(session.job, rental.name),
            rental.rate,
            bounds.max_hours - seconds / Decimal(3600),
        ),
        wind_down(session),
    )


def watchdog_request(session: Session, bought: Deadlines) -> dict[str, Any]:
    """The watchdog's orders. A held host must not be stopped for idleness while it is held."""
    billing = session.contract.billing
    return {
        "train_until_seconds": bought.train_until_seconds,
        "stop_at_seconds": bought.stop_at_seconds,
        "idle_seconds": max(billing.idle_grace, billing.hold_on_failure),
        "collect_grace_seconds": billing.collect_grace,
        "stop_argv": list(session.instance().stop_argv),
        "grant": session.grant.grant_id,
        "poll_seconds": 5,
        "persist_seconds": 60,
        "term_grace_seconds": 60,
    }
