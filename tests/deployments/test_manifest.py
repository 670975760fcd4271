"""prefect.yaml is read whole, and refused with every fault at once."""

from __future__ import annotations

import pytest

from deployments.manifest import read_manifest
from deployments.runner import _limit
from experiment.errors import ContractInvalid, NotFound, UsageError


def test_our_own_file_names_both_runners():
    """The shipped file has something for each runner, by module path."""
    entries = read_manifest()
    assert {entry.runner for entry in entries} == {"experiments", "reapers"}
    assert all(entry.entrypoint.startswith(f"flows.{entry.name}.") for entry in entries)


def test_every_fault_is_named_at_once(tmp_path):
    """A file path for an entrypoint and an entry for nobody are both in the answer."""
    path = tmp_path / "prefect.yaml"
    path.write_text(
        "deployments:\n"
        "  - {name: one, entrypoint: 'flows/one.py:one', tags: [experiments]}\n"
        "  - {name: two, entrypoint: flows.two.two, tags: [experiments, reapers]}\n"
    )
    with pytest.raises(ContractInvalid) as refused:
        read_manifest(path)
    assert [line.split(":")[0] for line in refused.value.details] == ["one", "two"]


def test_an_empty_file_is_refused(tmp_path):
    """No deployments is a fault, not an idle runner."""
    path = tmp_path / "prefect.yaml"
    path.write_text("name: nothing\n")
    with pytest.raises(ContractInvalid, match="refused"):
        read_manifest(path)
    with pytest.raises(NotFound):
        read_manifest(tmp_path / "absent.yaml")


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_a_limit_is_a_whole_number(text):
    """CHARTER_RUNNER_LIMIT is checked before anything is served."""
    with pytest.raises(UsageError, match="CHARTER_RUNNER_LIMIT"):
        _limit({"CHARTER_RUNNER_LIMIT": text})
    assert _limit({}) == 30
