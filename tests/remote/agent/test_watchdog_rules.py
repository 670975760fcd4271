"""When a host must be stopped: the rules, with the time in our hands."""

from __future__ import annotations

from typing import Any

import pytest

from remote.agent.errors import AgentError
from remote.agent.watchdog_rules import (
    Action,
    Now,
    Seen,
    State,
    arm,
    carry_over,
    contact,
    decide,
    launched,
    view,
)

REQUEST: dict[str, Any] = {
    "train_until_seconds": 3000,
    "stop_at_seconds": 3600,
    "idle_seconds": 900,
    "collect_grace_seconds": 1800,
    "term_grace_seconds": 120,
    "persist_seconds": 60,
    "stop_argv": ["/sbin/off"],
    "grant": "one",
}
TRAINING = Seen(launches=("run/1/launch",))
NOBODY = Seen()
UTC = 1_800_000_000.0


def at(seconds: float, boot: str = "boot-1", utc: float | None = None) -> Now:
    """The moment `seconds` after the arming, on a boot clock that began at 500."""
    return Now(boot, "boottime", 500 + seconds, UTC + seconds if utc is None else utc)


def armed(**fields: Any) -> State:
    return arm(None, {**REQUEST, **fields}, at(0))[0]


def left(state: State, now: Now) -> tuple[float, float]:
    seen = view(state, now)
    return seen["train_until_seconds"], seen["stop_at_seconds"]


def walk(state: State, seen: Seen, *moments: float) -> tuple[State, list[Action]]:
    """Look at each moment; the last actions."""
    actions: list[Action] = []
    for moment in moments:
        state, actions = decide(state, seen, at(moment))
    return state, actions


@pytest.mark.parametrize(
    ("seen", "seconds", "expected"),
    [
        pytest.param(NOBODY, 0, [], id="just armed"),
        pytest.param(NOBODY, 899, [], id="not idle yet"),
        pytest.param(NOBODY, 900, [Action("stop", "idle")], id="idle"),
        pytest.param(Seen(step_running=True), 900, [], id="a step runs"),
        pytest.param(Seen(ssh_session=True), 2000, [], id="somebody is logged in"),
        pytest.param(TRAINING, 2999, [], id="training, nobody else"),
        pytest.param(TRAINING, 3000, [Action("term", TRAINING.launches[0])], id="train_until"),
        pytest.param(
            TRAINING,
            3600,
            [Action("kill", TRAINING.launches[0]), Action("stop", "stop_at")],
            id="stop_at while training",
        ),
        pytest.param(
            Seen(step_running=True, ssh_session=True),
            3600,
            [Action("stop", "stop_at")],
            id="stop_at stops for nobody",
        ),
    ],
)
def test_one_look(seen: Seen, seconds: float, expected: list[Action]) -> None:
    """What follows from one look at a host that was armed and then left alone."""
    assert walk(armed(), seen, seconds)[1] == expected


def test_term_is_sent_once_per_launch() -> None:
    """A second TERM would make many trainers drop the checkpoint that they are writing."""
    state, first = walk(armed(), TRAINING, 3000)
    state, again = walk(state, TRAINING, 3010, 3300)
    assert (len(first), again) == (1, [])
    later = Seen(launches=("run/2/launch",))
    assert walk(state, later, 3310)[1] == [Action("term", "run/2/launch")]


def test_there_is_time_for_a_checkpoint() -> None:
    """train_until keeps term_grace_seconds away from stop_at, whatever was asked."""
    state = armed(train_until_seconds=3600)
    assert left(state, at(0)) == (3480, 3600)


def test_stop_is_repeated_until_the_host_dies() -> None:
    """The stop command runs again every stop_retry_seconds, and attempts are counted."""
    state, actions = walk(armed(), NOBODY, 3600)
    assert actions == [Action("stop", "stop_at")]
    state, actions = walk(state, NOBODY, 3601, 3629)
    assert actions == []
    state, actions = walk(state, NOBODY, 3630)
    assert actions == [Action("stop", "stop_at")]
    assert state["stopping"]["attempts"] == 2


def test_without_a_stop_command_it_is_said() -> None:
    """No command is no reason to be silent: the state says unavailable."""
    state, actions = walk(armed(stop_argv=[]), NOBODY, 3600)
    assert state["stopping"]["unavailable"] is True
    assert actions == [Action("stop", "stop_at")]
    assert view(state, at(3600))["stop_available"] is False


def test_losing_the_controller_changes_nothing_while_training() -> None:
    """A trainer alive and inside its bounds is left alone without any contact."""
    state, actions = walk(armed(), TRAINING, 60, 1000, 2000, 2999)
    assert actions == []
    assert state["stopping"] is None


def test_results_wait_for_the_collect_grace() -> None:
    """After the trainer's end its results wait 30 minutes, not the 15 of an idle host."""
    state, _ = walk(armed(), TRAINING, 60)
    state, actions = walk(state, NOBODY, 100, 1000, 1899)
    assert actions == []
    assert walk(state, NOBODY, 1900)[1] == [Action("stop", "collect_grace")]


def test_contact_renews_the_collect_grace() -> None:
    """A controller that comes back gets the whole grace again."""
    state, _ = walk(armed(), TRAINING, 60)
    state, _ = walk(state, NOBODY, 100)
    state, _ = contact(state, {}, at(1800))
    assert walk(state, NOBODY, 3500)[1] == []


def test_a_trainer_quicker_than_a_look() -> None:
    """A launch alone starts the collect phase, even when no look ever saw the trainer."""
    state = launched(armed(), at(10))
    state, actions = walk(state, NOBODY, 12, 1000)
    assert actions == []
    assert walk(state, NOBODY, 1812)[1] == [Action("stop", "collect_grace")]


def test_contact_never_moves_a_deadline() -> None:
    """Contact renews idle only."""
    state, refused = contact(armed(), {}, at(800))
    assert not refused
    assert left(state, at(800)) == (2200, 2800)
    assert walk(state, NOBODY, 1699)[1] == []
    assert walk(state, NOBODY, 1700)[1] == [Action("stop", "idle")]


def test_a_lease_counts_as_contact_for_a_while() -> None:
    """A lease keeps an idle host; one whose holder is never heard of again lapses."""
    state, _ = contact(armed(), {"lease": {"run_id": "r"}}, at(0))
    assert walk(state, NOBODY, 1000, 1799)[1] == []
    assert walk(state, NOBODY, 1800)[1] == [Action("stop", "idle")]


def test_release_ends_lease_and_collect_phase() -> None:
    """After the results are safe an unused host is idle again."""
    state, _ = contact(launched(armed(), at(1)), {"lease": {"run_id": "r"}}, at(1))
    state, _ = contact(state, {"release": True}, at(100))
    assert state["lease"] is None
    assert walk(state, NOBODY, 999)[1] == []
    assert walk(state, NOBODY, 1000)[1] == [Action("stop", "idle")]


@pytest.mark.parametrize(
    ("grant", "expected", "refused"),
    [
        ("one", (2900, 3500), True),
        (None, (2900, 3500), True),
        ("", (2900, 3500), True),
        ("two", (7000, 8000), False),
    ],
)
def test_later_deadlines_need_a_new_grant(
    grant: str | None, expected: tuple[float, float], refused: bool
) -> None:
    """Only a request that names a grant not seen before buys time."""
    asked = {"train_until_seconds": 7000, "stop_at_seconds": 8000, "grant": grant}
    state, found = contact(armed(), {"deadlines": asked}, at(100))
    assert left(state, at(100)) == expected
    assert found is refused


def test_a_grant_buys_time_once() -> None:
    """The same new grant named again later doesn't extend again."""
    asked = {"train_until_seconds": 7000, "stop_at_seconds": 8000, "grant": "two"}
    state, _ = contact(armed(), {"deadlines": asked}, at(100))
    state, refused = contact(state, {"deadlines": asked}, at(500))
    assert refused
    assert left(state, at(500)) == (6600, 7600)


def test_earlier_deadlines_need_none() -> None:
    """Less time is always granted."""
    asked = {"train_until_seconds": 10, "stop_at_seconds": 500, "grant": "one"}
    state, refused = contact(armed(), {"deadlines": asked}, at(100))
    assert not refused
    assert left(state, at(100)) == (10, 500)


def test_arming_again_keeps_the_nearer_deadlines() -> None:
    """The same grant armed again can't buy time, and settings are taken over."""
    state, refused = arm(armed(), {**REQUEST, "stop_argv": ["/bin/off2"]}, at(600))
    assert refused
    assert left(state, at(600)) == (2400, 3000)
    assert state["stop_argv"] == ["/bin/off2"]


def test_a_new_grant_ends_the_stopping() -> None:
    """An extension that comes while the stop command still fails lets the host live."""
    state, _ = walk(armed(), NOBODY, 3600)
    state, _ = arm(state, {**REQUEST, "grant": "two"}, at(3605))
    state, actions = walk(state, NOBODY, 3700)
    assert actions == []
    assert state["stopping"] is None


def test_contact_ends_an_idle_stop_but_no_deadline() -> None:
    """Somebody who comes in time saves an idle host, never one whose time is over."""
    state, _ = walk(armed(), NOBODY, 900)
    state, _ = contact(state, {}, at(905))
    assert walk(state, NOBODY, 910)[1] == []
    state, _ = walk(armed(), NOBODY, 3600)
    state, _ = contact(state, {}, at(3605))
    assert walk(state, NOBODY, 3700)[1] == [Action("stop", "stop_at")]


@pytest.mark.parametrize(
    ("gap", "off", "expected"),
    [
        pytest.param(60, 0, (2840, 3440), id="short"),
        pytest.param(4000, 0, (0, 0), id="longer than what was left"),
        pytest.param(4000, 4000, (2900, 3500), id="explained by the provider"),
        pytest.param(4000, 3900, (2800, 3400), id="partly explained"),
        pytest.param(-1, 0, (0, 0), id="the wall went backwards"),
    ],
)
def test_deadlines_over_a_reboot(gap: float, off: float, expected: tuple[float, float]) -> None:
    """After a reboot deadlines shrink by the time that nobody accounts for, or count as passed."""
    state, _ = walk(armed(), NOBODY, 100)
    rebooted = Now("boot-2", "boottime", 7.0, UTC + 100 + gap)
    assert left(carry_over(state, rebooted, off), rebooted) == expected


def test_a_reboot_without_the_boot_clock() -> None:
    """Another clock is treated like another boot: its seconds mean nothing to the old state."""
    state = carry_over(armed(), at(0))
    other = Now("boot-1", "monotonic", 12.0, UTC + 50)
    assert left(carry_over(state, other), other) == (2950, 3550)


def test_wall_clock_jumps_within_a_boot_change_nothing() -> None:
    """Only the boot clock counts while the host is up."""
    state = armed()
    for utc in (0.0, UTC * 2):
        assert left(state, at(100, utc=utc)) == (2900, 3500)
        assert decide(state, NOBODY, at(100, utc=utc))[1] == []


def test_the_mark_is_renewed_each_minute() -> None:
    """What a reboot starts from is never older than persist_seconds."""
    state = armed()
    quiet, _ = walk(state, NOBODY, 59)
    assert quiet == state
    marked, _ = walk(state, NOBODY, 60)
    assert marked["mark"]["utc"] == UTC + 60


def test_decide_leaves_its_input_alone() -> None:
    """The rules are pure."""
    state = armed()
    before = {**state}
    walk(state, TRAINING, 3000, 3600)
    assert state == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"train_until_seconds": None},
        {"stop_at_seconds": "3600"},
        {"stop_at_seconds": -1},
        {"stop_at_seconds": float("nan")},
        {"stop_at_seconds": True},
        {"idle_seconds": float("inf")},
        {"stop_argv": "shutdown"},
        {"stop_argv": None},
        {"stop_argv": [1]},
        {"sessions": "none"},
    ],
)
def test_wrong_fields_are_named(wrong: dict[str, Any]) -> None:
    """A wrong field arms nothing, exits 64 and is named."""
    with pytest.raises(AgentError) as caught:
        armed(**wrong)
    assert caught.value.exit_code == 64
    assert next(iter(wrong)) in caught.value.message
