"""How a life ends when something is wrong: the right state, the right code, the meter off."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime, timedelta

import pytest

from experiment.clock import SystemClock
from experiment.contract import load_contract
from experiment.errors import CharterError, GuardRefused
from experiment.ledger import Ledger
from experiment.providers.registry import get_provider
from experiment.rentals.sweep import sweep
from experiment.steps import AFTER_THE_GATE, RunRef, attached, walk
from experiment.steps.looking import look
from experiment.steps.opening import controlling, open_run
from experiment.steps.orders import collect_run, shutdown_run, stop_trainer
from experiment.steps.shutdown import shutdown
from remote.agent import process
from tests.e2e.conftest import World

pytestmark = pytest.mark.sshd


class LaterClock(SystemClock):
    """The machine's clock, some seconds ahead."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.ahead)


def _sweep(world: World, ahead: float) -> list[str]:
    """The sweep's actions, that many seconds from now."""
    ledger = Ledger.open(world.home, LaterClock(ahead))
    try:
        return [finding.action for finding in sweep(world.home, ledger)]
    finally:
        ledger.close()


def _until_running(world: World) -> int:
    """The trainer's PID, once the ledger says RUNNING."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        found = world.ledger().newest("tiny")
        if found is not None and found.state == "RUNNING":
            return world.host_pids()[0]
        time.sleep(0.1)
    raise AssertionError("not RUNNING within 60 s")


def test_a_trainer_without_its_artifacts_is_partial(world: World) -> None:
    """Exit 0 and no summary.json: PARTIAL, not COMPLETED; held, then stopped for money."""
    world.set('TRAIN_SECONDS: "0.3"', 'TRAIN_SECONDS: "0.3", TRAIN_NO_SUMMARY: "1"')
    assert world.drive()[:2] == (0, "PARTIAL")
    monitored = next(e for e in reversed(world.entries()) if e["to"] == "PARTIAL")
    assert monitored["evidence"]["outputs"]["missing"] == ["summary.json"]
    assert _sweep(world, 1100) == ["leave"]
    assert world.instances() == ["running"]
    assert _sweep(world, 1300) == ["stop"]
    assert world.instances() == ["off"]
    assert world.run().state == "PARTIAL"


def test_a_verifier_that_says_no(world: World) -> None:
    """COLLECTED, never VERIFIED; exit 1 with its words; held, then stopped for money."""
    world.set('TRAIN_SECONDS: "0.3"', 'TRAIN_SECONDS: "0.3", CHECK_LAUNCHES: "7"')
    code, _, err = world.drive()
    assert code == 1
    assert "exit 3: 1 launches" in err
    assert world.run().state == "COLLECTED"
    with (
        attached(RunRef(str(world.home.root), world.run().run_id)) as session,
        pytest.raises(CharterError, match="expected a VERIFIED run"),
    ):
        shutdown(session)
    assert _sweep(world, 1300) == ["stop"]
    assert world.instances() == ["off"]
    assert [r.receipt["by"] for r in world.rentals()] == [
        "sweep: held 1200 s for a fix after COLLECTED"
    ]


def test_a_trainer_that_fails_can_be_salvaged(world: World) -> None:
    """Exit 5: FAILED with the code; its files can be collected and stay unverified."""
    world.set('TRAIN_SECONDS: "0.3"', 'TRAIN_SECONDS: "0.3", TRAIN_EXIT: "5"')
    assert world.drive()[:2] == (0, "FAILED")
    error = next(e for e in reversed(world.entries()) if e["to"] == "FAILED")["evidence"]["error"]
    assert "exit code 5" in error["message"]
    found = collect_run(world.home, "tiny")
    assert found["state"] == "COLLECTED"
    assert (world.results() / "metrics.jsonl").exists()
    assert world.run().state == "COLLECTED"


def test_a_killed_trainer(world: World) -> None:
    """kill -9 of the trainer: FAILED with 137, by its supervisor's record."""
    world.set('TRAIN_SECONDS: "0.3"', 'TRAIN_SECONDS: "60"')
    controller = world.controller()
    os.kill(_until_running(world), signal.SIGKILL)
    _, out, err = controller.end()
    assert out == "FAILED", err
    failed = next(e for e in world.entries() if e["to"] == "FAILED")
    assert failed["evidence"]["exit_record"]["exit_code"] == 137


def test_stopped_by_a_person(world: World) -> None:
    """`stop` ends the trainer, not the host; `shutdown` is refused before, and works after."""
    world.set('TRAIN_SECONDS: "0.3"', 'TRAIN_SECONDS: "60"')
    controller = world.controller()
    identity = process.identify(_until_running(world))
    with pytest.raises(GuardRefused, match="charter stop"):
        shutdown_run(world.home, "tiny", who="somebody", dry_run=False)
    assert process.alive(identity)
    assert look(world.home, "tiny").body["verdict"] == "RUNNING"
    assert stop_trainer(world.home, "tiny", force=False, who="somebody")["exited"]
    _, out, err = controller.end()
    assert out == "FAILED", err
    assert world.instances() == ["running"]
    found = shutdown_run(world.home, "tiny", who="somebody", dry_run=False)
    assert found["receipt"]["by"] == "charter shutdown by somebody"
    assert world.run().state == "SHUTDOWN"
    assert world.instances() == ["off"]


def test_too_little_disk_is_refused_before_anything_is_sent(world: World) -> None:
    """Exit 2 at the basic preflight: nothing uploaded, nothing installed."""
    world.set("min_free_gib: 1", "min_free_gib: 900000")
    code, _, err = world.drive()
    assert code == 2
    assert "900000" in err
    assert "upload" not in [e["step"] for e in world.entries()]
    assert world.run().state == "FAILED"


def test_a_damaged_payload_is_built_again(world: World) -> None:
    """The same project gives the same bytes: a payload that was lost or damaged is made anew."""
    world.drive(CHARTER_FAULT="kill:bundle.after")
    (payload,) = world.home.root.glob("runs/tiny/*/bundle/*.tar.gz")
    payload.write_bytes(b"x")
    code, out, err = world.drive()
    assert (code, out) == (0, "SHUTDOWN"), err
    world.must_be_whole()


def test_a_project_changed_after_its_approval_is_not_sent(world: World) -> None:
    """The approved bundle, or none: exit 2 naming the file."""
    world.drive(CHARTER_FAULT="kill:bundle.after")
    (payload,) = world.home.root.glob("runs/tiny/*/bundle/*.tar.gz")
    payload.unlink()
    (world.contract.parent / "train.py").write_text("print('another')")
    code, _, err = world.drive()
    assert code == 2
    assert payload.name in err


def test_a_payload_changed_there_is_not_unpacked(world: World) -> None:
    """The hash is compared on the host before extraction: exit 2, nothing extracted."""
    world.drive(CHARTER_FAULT="kill:upload.after")
    (payload,) = world.home.hosts.glob("*/data/jobs/tiny/incoming/*")
    payload.write_bytes(b"x" + payload.read_bytes()[1:])
    code, _, err = world.drive()
    assert (code, world.run().state) == (2, "FAILED"), err
    assert list(world.home.hosts.glob("*/data/jobs/tiny/bundles/*/project")) == []


def test_a_rate_above_the_approved_one(world: World) -> None:
    """Read after creation, refused: off, released, exit 5, nothing was sent."""
    code, _, err = world.drive(CHARTER_LOCAL_HABITS="rate=3")
    assert code == 5
    assert "rate above the approved one" in err
    assert world.instances() == []
    assert [(r.kept, r.status) for r in world.rentals()] == [(False, "closed")]


def test_a_host_that_cannot_be_armed_is_stopped(world: World) -> None:
    """Running, but no sshd within ten minutes of its clock: stopped through the provider."""

    class QuickClock(SystemClock):
        """Ten minutes pass in a second of waiting."""

        passed = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.passed

        def sleep(self, seconds: float) -> None:
            type(self).passed += 300 * seconds
            super().sleep(min(seconds, 0.05))

    world.drive(CHARTER_FAULT="kill:rent.after", CHARTER_LOCAL_HABITS="no_sshd")
    ref = RunRef(str(world.home.root), world.run().run_id)
    with (
        controlling(ref) as held,
        attached(held, QuickClock()) as session,
        pytest.raises(CharterError, match="could not be armed and was stopped"),
    ):
        walk(session, AFTER_THE_GATE)
    assert world.instances() == ["off"]
    assert world.run().state == "FAILED"


def test_a_failed_runs_host_is_taken_over_by_the_next(world: World) -> None:
    """It is held for a fix: the next run of the job reuses it instead of renting another."""
    world.set('TRAIN_SECONDS: "0.3"', 'TRAIN_SECONDS: "0.3", TRAIN_EXIT: "5"')
    assert world.drive()[1] == "FAILED"
    world.set(', TRAIN_EXIT: "5"', "")
    open_run(world.home, load_contract(world.contract), new=True)
    code, out, err = world.drive()
    assert (code, out) == (0, "SHUTDOWN"), err
    rented = [e["evidence"] for e in world.entries() if e["to"] == "RENTED"]
    assert [r["reused"] for r in rented] == [True]
    assert world.instances() == ["off"]


def test_a_launch_is_found_again_whatever_changed_meanwhile(world: World) -> None:
    """Killed between launch and record; then its secret is gone from the environment: the next
    walk finds the running trainer instead of failing the run."""
    world.set("billing:", "secrets: [PLANTED_SECRET]\nbilling:")
    world.set('TRAIN_SECONDS: "0.3"', 'TRAIN_SECONDS: "4"')
    code, _, err = world.drive(CHARTER_FAULT="kill:launch.effect", PLANTED_SECRET="planted-value")
    assert code == -signal.SIGKILL, err
    assert _sweep(world, 60) == ["leave"]
    code, out, err = world.drive()
    assert (code, out) == (0, "SHUTDOWN"), err
    world.must_be_whole()
    for file in world.results().rglob("*"):
        assert not file.is_file() or b"planted-value" not in file.read_bytes()


def test_a_failed_runs_order_does_not_stop_its_successors_host(world: World) -> None:
    """`shutdown` of the old run is refused while the new one holds the host."""
    world.set('TRAIN_SECONDS: "0.3"', 'TRAIN_SECONDS: "0.3", TRAIN_EXIT: "5"')
    world.drive()
    failed = world.run().run_id
    world.set('TRAIN_SECONDS: "0.3", TRAIN_EXIT: "5"', 'TRAIN_SECONDS: "60"')
    open_run(world.home, load_contract(world.contract), new=True)
    code, _, err = world.drive(CHARTER_FAULT="kill:launch.after")
    assert code == -signal.SIGKILL, err
    with pytest.raises(GuardRefused, match="works on it now"):
        shutdown_run(world.home, failed, who="somebody", dry_run=False)
    assert world.instances() == ["running"]


def test_a_shutdown_order_reaches_a_controller_that_watches(world: World) -> None:
    """An order while a flow holds the job: the flow obeys and lets the job go."""
    world.set('TRAIN_SECONDS: "0.3"', 'TRAIN_SECONDS: "60"')
    controller = world.controller()
    _until_running(world)
    order = {"who": "somebody", "what": "host"}
    world.ledger().note(world.run().run_id, "stop_requested", order)
    code, _, err = controller.end()
    assert code == 1
    assert "stopped by order" in err
    assert world.instances() == ["off"]
    assert world.rentals()[0].receipt["by"] == "charter shutdown by somebody"


def test_a_host_that_was_never_armed_is_swept(world: World) -> None:
    """Its controller died between rent and arm: after ten minutes the sweep stops it."""
    world.drive(CHARTER_FAULT="kill:rent.after")
    assert _sweep(world, 590) == ["leave"]
    assert _sweep(world, 610) == ["stop"]
    assert world.instances() == ["off"]


def test_an_instance_that_is_on_over_a_closed_rental_is_swept(world: World) -> None:
    """Something powered it on again behind our back: it is stopped."""
    assert world.drive()[1] == "SHUTDOWN"
    (rental,) = world.rentals()
    get_provider("local", world.home, SystemClock()).power_on(str(rental.instance))
    assert _sweep(world, 0) == ["stop"]
    assert world.instances() == ["off"]


def test_a_salvaged_job_can_start_again(world: World) -> None:
    """A salvage is over: the next `run` starts a new run instead of verifying it."""
    world.set('TRAIN_SECONDS: "0.3"', 'TRAIN_SECONDS: "0.3", TRAIN_EXIT: "5"')
    world.drive()
    collect_run(world.home, "tiny")
    _, continued = open_run(world.home, load_contract(world.contract))
    assert not continued


def test_a_machine_without_sshd(world: World) -> None:
    """The same life through subprocesses, and the evidence says that no SSH was involved."""
    code, out, err = world.drive(CHARTER_LOCAL_SSHD="none")
    assert (code, out) == (0, "SHUTDOWN"), err
    rented = next(e["evidence"] for e in world.entries() if e["to"] == "RENTED")
    assert rented["involves_ssh"] is False
    world.must_be_whole()


def test_a_kept_host_serves_the_next_run(world: World) -> None:
    """`shutdown: keep`: VERIFIED is the end, and the next run reuses host and full preflight."""
    world.set("currency: CNY}", "currency: CNY, shutdown: keep}")
    assert world.drive()[1] == "VERIFIED"
    first = world.run().run_id
    world.contract.with_name("again").write_text("another bundle")
    open_run(world.home, load_contract(world.contract), new=True)
    assert world.drive()[1] == "VERIFIED"
    assert world.instances() == ["running"]
    assert world.run().run_id != first
    done = {e["step"]: e["evidence"] for e in world.entries() if e["phase"] == "done"}
    assert done["rent"]["reused"] is True
    # Another bundle is another question; the same one is answered already.
    assert "reused_from" not in done["preflight_full"]
    open_run(world.home, load_contract(world.contract), new=True)
    assert world.drive()[1] == "VERIFIED"
    done = {e["step"]: e["evidence"] for e in world.entries() if e["phase"] == "done"}
    assert "reused_from" in done["preflight_full"]
    assert (world.results() / "preflight.json").is_file()
