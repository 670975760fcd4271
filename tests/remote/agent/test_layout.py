from __future__ import annotations

import pytest

from remote.agent.errors import AgentError
from remote.agent.layout import Layout, safe_name


def test_paths_of_one_run(layout: Layout) -> None:
    """The places that other programs rest on."""
    root = layout.data_root
    assert layout.run_root().path == root / "runs" / "tiny" / "20260101-000000"
    assert layout.bundle("abcdef0123456789") == root / "jobs/tiny/bundles/abcdef012345"
    assert layout.run_root().exit_record.name == "process-exit.json"


def test_inside_takes_only_what_is_inside(layout: Layout) -> None:
    """Relative paths, `..`, siblings with the same prefix and links out are refused, exit 2."""
    root = layout.data_root
    (root / "runs").mkdir(parents=True)
    (root / "out").symlink_to("/etc")
    assert layout.inside(f"{root}/runs/x") == (root / "runs" / "x").resolve()
    for path in ("runs", f"{root}/../x", f"{root}-other/x", f"{root}/out/passwd", "/"):
        with pytest.raises(AgentError) as caught:
            layout.inside(path)
        assert (caught.value.kind, caught.value.exit_code) == ("guard_refused", 2)
        assert repr(path) in caught.value.message


def test_safe_names_stay_readable_and_apart() -> None:
    """A request id becomes one file name; odd or long texts are told apart by a digest."""
    assert safe_name("20260101-000000/1/launch") == "20260101-000000__1__launch"
    odd = ["a__b", "a/b", "a b", "a_b", ".a", "..", "é", "x" * 300, "x" * 301, "a\nb"]
    names = [safe_name(text) for text in odd]
    assert len(set(names)) == len(odd)
    for name in names:
        assert "/" not in name
        assert not name.startswith(".")
        assert len(name.encode()) < 200
