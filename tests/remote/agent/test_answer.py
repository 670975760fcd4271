from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from remote.agent.answer import admit_epoch, answered, layout_of, request_sha256
from remote.agent.errors import AgentError
from remote.agent.layout import Layout

Envelope = Callable[..., dict[str, Any]]

WRONG = [
    ("protocol", 2),
    ("protocol", None),
    ("data_root", "relative"),
    ("data_root", "/"),
    ("data_root", "/a/../b"),
    ("job", "Tiny Job"),
    ("job", "../x"),
    ("job", None),
    ("run_id", "today"),
    ("attempt", 0),
    ("attempt", True),
    ("epoch", -1),
    ("epoch", "1"),
    ("epoch", None),
    ("request_id", ""),
    ("request_id", None),
]


class Counting:
    """A step that counts how often it really runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, request: dict[str, Any], layout: Layout) -> dict[str, Any]:
        self.runs += 1
        return {"runs": self.runs}


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_wrong_envelopes_are_usage_errors(envelope: Envelope, name: str, value: object) -> None:
    """The field is named, nothing is done, exit 64."""
    with pytest.raises(AgentError, match=name) as caught:
        layout_of(envelope("launch", **{name: value}), read_only=False)
    assert (caught.value.kind, caught.value.exit_code) == ("usage", 64)


def test_a_request_must_be_an_object() -> None:
    """A list is no request."""
    with pytest.raises(AgentError, match="list"):
        layout_of([], read_only=True)


def test_reads_need_no_run(layout: Layout) -> None:
    """Before the first run the host can be asked."""
    asked = {"protocol": 1, "request_id": "x", "data_root": str(layout.data_root)}
    assert layout_of(asked, read_only=True).data_root == layout.data_root


def test_identity_leaves_out_epoch_and_secrets(envelope: Envelope) -> None:
    """A later controller asks the same thing; a secret leaves no trace in the digest."""
    plain = request_sha256(envelope("launch", argv=["a"]))
    assert request_sha256(envelope("launch", epoch=9, argv=["a"], secrets={"A": "b"})) == plain
    assert request_sha256(envelope("launch", argv=["b"])) != plain


def test_same_request_gets_the_recorded_answer(layout: Layout, envelope: Envelope) -> None:
    """The step runs once; the replay says so and is otherwise equal."""
    step = Counting()
    first = answered("launch", envelope("launch"), layout, step, None)
    again = answered("launch", envelope("launch", epoch=3), layout, step, None)
    assert step.runs == 1
    assert again.pop("replayed") is True
    assert again == first


def test_same_id_with_another_body_is_refused(layout: Layout, envelope: Envelope) -> None:
    """Other fields under a used request id: evidence_mismatch, exit 2, no second effect."""
    step = Counting()
    answered("launch", envelope("launch", argv=["a"]), layout, step, None)
    with pytest.raises(AgentError) as caught:
        answered("launch", envelope("launch", argv=["b"]), layout, step, None)
    assert (caught.value.kind, caught.value.exit_code, step.runs) == ("evidence_mismatch", 2, 1)


def test_evidence_that_no_longer_holds_is_made_anew(layout: Layout, envelope: Envelope) -> None:
    """A wiped folder is not taken for complete because an answer was recorded."""
    step = Counting()
    for holds in (True, False, True):
        answer = answered(
            "unpack", envelope("unpack"), layout, step, lambda _e, _r, _l, holds=holds: holds
        )
    assert step.runs == 2
    assert answer["evidence"] == {"runs": 2}


def test_a_failed_step_is_not_recorded(layout: Layout, envelope: Envelope) -> None:
    """After a failure the same request runs again."""

    def fail(request: dict[str, Any], layout: Layout) -> dict[str, Any]:
        raise AgentError("remote_step_failed", "no")

    with pytest.raises(AgentError):
        answered("unpack", envelope("unpack"), layout, fail, None)
    step = Counting()
    answered("unpack", envelope("unpack"), layout, step, None)
    assert step.runs == 1


def test_damaged_record_is_no_record(layout: Layout, envelope: Envelope) -> None:
    """Half an answer file counts as none."""
    asked = envelope("unpack")
    path = layout.answer(asked["request_id"])
    path.parent.mkdir(parents=True)
    path.write_text('{"evidence": {"ru')
    step = Counting()
    answered("unpack", asked, layout, step, None)
    assert step.runs == 1


def test_a_replaced_controller_is_refused(layout: Layout, envelope: Envelope) -> None:
    """A lower epoch than the highest seen is busy, also for a recorded answer; equal is fine."""
    step = Counting()
    answered("launch", envelope("launch", epoch=5), layout, step, None)
    answered("launch", envelope("launch", epoch=5), layout, step, None)
    with pytest.raises(AgentError, match="epoch 5") as caught:
        answered("launch", envelope("launch", epoch=4), layout, step, None)
    assert (caught.value.kind, caught.value.exit_code) == ("busy", 1)


def test_epochs_of_jobs_are_apart(layout: Layout) -> None:
    """Another job's controller fences nobody here."""
    admit_epoch(Layout(layout.data_root, "other", "", 0), 9)
    admit_epoch(layout, 1)


def test_two_jobs_with_one_run_id_keep_their_answers_apart(
    layout: Layout, envelope: Envelope
) -> None:
    """Run ids are times: two jobs may share one on a host."""
    step = Counting()
    answered("launch", envelope("launch"), layout, step, None)
    other = Layout(layout.data_root, "other", layout.run_id, 1)
    answered("launch", envelope("launch", job="other"), other, step, None)
    assert step.runs == 2


def test_racing_requests_run_once(layout: Layout, envelope: Envelope) -> None:
    """Eight callers at once: one runs the step, seven get its answer."""
    step = Counting()
    answers: list[dict[str, Any]] = []

    def call() -> None:
        answers.append(answered("launch", envelope("launch"), layout, step, None))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert step.runs == 1
    assert len(answers) == 8
    assert sum(1 for answer in answers if answer.get("replayed")) == 7
