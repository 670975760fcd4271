"""`once`: an effect happens once, is asked after when its end is unknown, and is fenced."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from experiment.errors import Fenced, IllegalTransition
from experiment.evidence.chain import check_chain
from experiment.ledger import Controller, Ledger, Mismatch, hold

PLAN = {"contract_sha256": "a" * 64, "worst_case": {"amount": "1"}}


class Died(BaseException):
    """Stands for SIGKILL inside one process: nothing of ours catches it."""


class Effect:
    """An outside world in which something happened a number of times."""

    def __init__(self, dies: str = "") -> None:
        self.times = 0
        self.dies = dies

    def do(self, _begun: dict[str, Any]) -> dict[str, Any]:
        if self.dies == "before":
            raise Died
        self.times += 1
        if self.dies == "after":
            raise Died
        return {"times": self.times}

    def recover(self, _begun: dict[str, Any]) -> dict[str, Any] | None:
        return {"times": self.times, "recovered": True} if self.times else None


@pytest.fixture
def controller(ledger: Ledger, run_id: str) -> Controller:
    lock = hold(ledger, "tiny")
    lock.release()
    return Controller(ledger, run_id, 1, lock.epoch)


def test_a_recorded_step_is_not_done_again(controller: Controller) -> None:
    """The second call gives the first one's evidence."""
    effect = Effect()
    first = controller.once("upload", {"a": 1}, effect.do)
    assert controller.once("upload", {"a": 1}, effect.do) == first
    assert effect.times == 1


@pytest.mark.parametrize("dies", ["before", "after"])
def test_an_intent_without_an_end_is_asked_after(controller: Controller, dies: str) -> None:
    """A crash around the effect leads to one effect, found by recovery where it happened."""
    effect = Effect(dies)
    with pytest.raises(Died):
        controller.once("rent", {}, effect.do, recover=effect.recover, single=True)
    effect.dies = ""
    found = controller.once("rent", {}, effect.do, recover=effect.recover, single=True)
    assert effect.times == 1
    assert found.get("recovered", False) is (dies == "after")


def test_recovery_gets_what_the_intent_recorded(controller: Controller) -> None:
    """A name chosen at the first try is the one that recovery looks for."""
    with pytest.raises(Died):
        controller.once("rent", {}, Effect("before").do, intent={"name": "first"})
    asked: list[dict[str, Any]] = []
    controller.once(
        "rent",
        {},
        lambda begun: begun,
        recover=lambda begun: asked.append(begun),  # type: ignore[func-returns-value]
        intent={"name": "second"},
    )
    assert asked == [{"name": "first"}]


def test_a_single_step_with_other_inputs_raises(controller: Controller) -> None:
    """rent and launch never have a second effect, recorded or only begun."""
    effect = Effect()
    controller.once("launch", {"a": 1}, effect.do, single=True)
    with pytest.raises(Mismatch, match="launch"):
        controller.once("launch", {"a": 2}, effect.do, single=True)
    assert effect.times == 1


def test_other_inputs_do_another_step_again_without_moving_the_state(
    controller: Controller, ledger: Ledger
) -> None:
    """A host that was rebuilt gets its upload again; the run is past that state."""
    controller.once("plan", {}, lambda _: dict(PLAN), to="PLANNED")
    controller.once("plan", {"host": "rebuilt"}, lambda _: dict(PLAN), to="PLANNED")
    entered = [e["to"] for e in ledger.entries(controller.run_id) if e["to"]]
    assert entered == ["PLANNED"]


def test_a_state_without_evidence_records_nothing(controller: Controller, ledger: Ledger) -> None:
    """The refused done leaves only its intent behind."""
    with pytest.raises(IllegalTransition):
        controller.once("plan", {}, lambda _: {}, to="PLANNED")
    assert [e["phase"] for e in ledger.entries(controller.run_id)] == ["intent"]
    assert ledger.run(controller.run_id).state is None


@pytest.mark.parametrize("moment", ["begin", "effect"])
def test_a_fenced_controller_writes_nothing(
    ledger: Ledger, controller: Controller, moment: str
) -> None:
    """Another controller took the job before the step, or while its effect ran."""
    effect = Effect()

    def take(begun: dict[str, Any]) -> dict[str, Any]:
        hold(ledger, "tiny").release()
        return effect.do(begun)

    if moment == "begin":
        hold(ledger, "tiny").release()
    with pytest.raises(Fenced):
        controller.once("upload", {}, take)
    assert "done" not in {e["phase"] for e in ledger.entries(controller.run_id)}
    assert effect.times == (0 if moment == "begin" else 1)


def test_the_epoch_is_looked_at_again_just_before_the_effect(
    ledger: Ledger, controller: Controller
) -> None:
    """Recovery took minutes; meanwhile another controller came; the effect does not happen."""
    with pytest.raises(Died):
        controller.once("rent", {}, Effect("before").do)
    effect = Effect()

    def slow(_begun: dict[str, Any]) -> None:
        hold(ledger, "tiny").release()

    with pytest.raises(Fenced):
        controller.once("rent", {}, effect.do, recover=slow)
    assert effect.times == 0


def test_steps_of_another_attempt_are_done_anew(ledger: Ledger, run_id: str) -> None:
    """The key holds the attempt."""
    lock = hold(ledger, "tiny")
    lock.release()
    effect = Effect()
    for attempt in (1, 2):
        Controller(ledger, run_id, attempt, lock.epoch).once("launch", {}, effect.do, single=True)
    assert effect.times == 2


def test_parallel_writers_make_one_unbroken_chain(ledger: Ledger, run_id: str) -> None:
    """Four threads, 25 notes each: every one recorded, seqs contiguous, digests linked."""
    failures: list[BaseException] = []

    def write(name: int) -> None:
        try:
            for number in range(25):
                ledger.note(run_id, "note", {"who": name, "number": number})
        except BaseException as error:  # noqa: BLE001 - reported below, outside the thread
            failures.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = ledger.entries(run_id)
    assert failures == []
    assert [e["seq"] for e in entries] == list(range(1, 101))
    assert check_chain(entries) == []


def test_a_step_that_cannot_be_recorded_is_not_begun(
    controller: Controller, ledger: Ledger
) -> None:
    """A failed run's launch is refused before its effect, not after it."""
    controller.enter("rent", "PLANNED", PLAN)
    controller.enter("rent", "FAILED", {"error": {"message": "x"}})
    effect = Effect()
    with pytest.raises(IllegalTransition, match="launch"):
        controller.once("launch", {}, effect.do, to="RUNNING", single=True)
    assert effect.times == 0
    assert "launch" not in [e["step"] for e in ledger.entries(controller.run_id)]
