from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiment.bundle.select import Options, select
from experiment.errors import ContractInvalid, GuardRefused, NotFound
from tests.experiment.bundle.trees import git, grow

CASES = yaml.safe_load((Path(__file__).parent / "selections.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_selection(case: dict[str, Any], tmp_path: Path) -> None:
    """What enters, and what is left out for which reason, is what the table says."""
    root = grow(tmp_path / "p", case["tree"])
    if case.get("git"):
        git(root, "init", "-q")
        if case.get("tracked"):
            git(root, "add", "-f", *case["tracked"])
    chosen = select(root, Options(**case.get("options", {})))
    assert [member.path for member in chosen.members] == sorted(case["enters"])
    assert chosen.excluded == case["excluded"]


def test_a_persons_own_excludes_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Global ignore files change nothing; .git/info/exclude does."""
    root = grow(tmp_path / "p", {"a.py": "x", "b.py": "x"})
    git(root, "init", "-q")
    grow(tmp_path / "config", {"git/ignore": "a.py\n", "git/config": ""})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    git(root, "config", "core.excludesFile", str(tmp_path / "config/git/ignore"))
    (root / ".git/info/exclude").write_text("b.py\n")
    assert [member.path for member in select(root).members] == ["a.py"]


def test_a_folder_of_a_repository(tmp_path: Path) -> None:
    """A project below the top of a repository obeys the rules from above."""
    top = grow(tmp_path / "top", {".gitignore": "*.log\n", "p/a.py": "x", "p/b.log": "x"})
    git(top, "init", "-q")
    assert [member.path for member in select(top / "p").members] == ["a.py"]


def test_a_project_that_its_repository_ignores(tmp_path: Path) -> None:
    """A folder ignored from above is no part of that repository: its own rules hold."""
    files = {".gitignore": "p/\n", "p/a.py": "x", "p/b.log": "x", "p/.gitignore": "*.log\n"}
    top = grow(tmp_path / "top", files)
    git(top, "init", "-q")
    assert [member.path for member in select(top / "p").members] == [".gitignore", "a.py"]


def test_nested_repositories_and_submodules(tmp_path: Path) -> None:
    """A repository inside enters by its own rules, registered or not; its .git never does."""
    root = grow(tmp_path / "p", {"a.py": "x", ".gitignore": "*.tmp\n"})
    git(root, "init", "-q")
    for name in ("loose", "module"):
        inner = grow(root / name, {"i.py": "x", "i.tmp": "x", "i.log": "x", ".gitignore": "*.log"})
        git(inner, "init", "-q")
        git(inner, "add", ".")
        git(inner, "commit", "-qm", "one")
    git(root, "add", "module")
    names = [member.path for member in select(root).members]
    inner_names = [".gitignore", "i.py", "i.tmp"]
    expected = [f"{name}/{inner}" for name in ("loose", "module") for inner in inner_names]
    assert names == sorted([".gitignore", "a.py", *expected])


def test_deleted_tracked_files_are_no_members(tmp_path: Path) -> None:
    """A file in the index but not on disk is not there."""
    root = grow(tmp_path / "p", {"a.py": "x", "b.py": "x"})
    git(root, "init", "-q")
    git(root, "add", ".")
    (root / "b.py").unlink()
    assert [member.path for member in select(root).members] == ["a.py"]


BAD_LINKS = [
    ("/etc/passwd", "absolute link"),
    ("../outside", "leads outside"),
    ("d/../../outside", "leads outside"),
    ("nowhere", "dangling link"),
    ("l", "dangling link"),
]


@pytest.mark.parametrize("repository", [False, True])
@pytest.mark.parametrize(("target", "says"), BAD_LINKS)
def test_bad_links(target: str, says: str, repository: bool, tmp_path: Path) -> None:
    """Links that are absolute, lead outside or nowhere are refused by name."""
    root = grow(tmp_path / "p", {"a": "x", "d/b": "x", "l": f"-> {target}"})
    grow(tmp_path, {"outside": "x"})
    if repository:
        git(root, "init", "-q")
    with pytest.raises(GuardRefused, match=says) as caught:
        select(root)
    assert caught.value.thing == "l"
    assert [m.path for m in select(root, Options(exclude=["l"])).members] == ["a", "d/b"]


def test_a_link_that_leaves_by_another_link(tmp_path: Path) -> None:
    """A target that looks inside but resolves outside is refused."""
    root = grow(tmp_path / "p", {"a/b/c": "x", "deep": "-> a/b", "l": "-> deep/../../../q"})
    grow(tmp_path, {"q": "x"})
    with pytest.raises(GuardRefused, match="leads outside"):
        select(root)


@pytest.mark.parametrize("repository", [False, True])
def test_special_files(repository: bool, tmp_path: Path) -> None:
    """FIFOs and sockets are refused by name, all at once; ignored ones are only left out."""
    root = grow(tmp_path / "p", {"a": "x", ".gitignore": "ignored\n"})
    if repository:
        git(root, "init", "-q")
    os.mkfifo(root / "ignored")
    assert select(root).excluded == {"ignored": 1}
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(root)  # the name of a socket may have 108 bytes at most
        try:
            listener.bind("sock")
        finally:
            os.chdir(here)
        with pytest.raises(GuardRefused) as caught:
            select(root)
    lines = "\n".join(caught.value.details)
    assert "FIFO in the project: pipe" in lines
    assert "socket in the project: sock" in lines


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """A name that no manifest can hold is refused."""
    root = grow(tmp_path / "p", {"a": "x"})
    (root / os.fsdecode(b"bad\xff")).write_text("x")
    with pytest.raises(GuardRefused, match="not UTF-8"):
        select(root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable(tmp_path: Path) -> None:
    """A file or folder without read rights is refused, not left out in silence."""
    root = grow(tmp_path / "p", {"a": "x", "d/b": "x"})
    (root / "a").chmod(0)
    (root / "d").chmod(0)
    try:
        with pytest.raises(GuardRefused) as caught:
            select(root)
    finally:
        (root / "d").chmod(0o755)
    assert len(caught.value.details) == 2


def test_nothing_to_send(tmp_path: Path) -> None:
    """An empty project, or one of which nothing would enter, is refused; a missing one is 3."""
    root = grow(tmp_path / "p", {"empty/": "", "m.bin": "x"})
    with pytest.raises(ContractInvalid, match="empty project"):
        select(root)
    with pytest.raises(NotFound) as caught:
        select(tmp_path / "nowhere")
    assert caught.value.exit_code == 3


def test_adapters_have_a_cap(tmp_path: Path) -> None:
    """Weights that are allowed in may not be large."""
    root = grow(tmp_path / "p", {"a": "x", "ad.safetensors": "x" * 2048})
    allowed = Options(adapters=["*.safetensors"], adapters_max_mib=0.001)
    with pytest.raises(GuardRefused, match=r"ad\.safetensors: expected at most 0\.001 MiB"):
        select(root, allowed)


def test_largest_folders(tmp_path: Path) -> None:
    """Folders are ranked by what they hold, subfolders included."""
    root = grow(tmp_path / "p", {"a": "x" * 5, "d/e/f": "x" * 30, "d/g": "x" * 10})
    assert select(root).largest == (
        {"path": "d", "bytes": 40},
        {"path": "d/e", "bytes": 30},
        {"path": ".", "bytes": 5},
    )


NAMES = st.sampled_from(["a", "b", "c.txt", "d.log", "dir", "sub"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
# fmt: off
PATTERNS = st.sampled_from([
    "a", "/a", "dir/", "sub", "*.log", "!d.log", "!/a", "dir/*", "!dir/a", "**/b", "sub/**", "a/b",
    "*", "!*/", "!*.txt", "/*", "!/dir", "dir/**/c.txt", "[ab]", "?.txt", "# no", "", "!sub/",
])
# fmt: on


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    paths=st.lists(PATHS, min_size=1, max_size=12),
    rules=st.dictionaries(
        st.sampled_from(["", "dir/", "sub/"]), st.lists(PATTERNS, max_size=5), max_size=3
    ),
)
def test_outside_as_inside(
    paths: list[str], rules: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Outside a repository the same files enter as git would list."""
    root = tmp_path_factory.mktemp("tree")
    (root / "always.py").write_text("x")
    for path in paths:
        place = root / path
        if not any(parent.is_file() for parent in place.parents) and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("x")
    for folder, lines in rules.items():
        if (root / folder).is_dir():
            (root / folder / ".gitignore").write_text("\n".join(lines) + "\n")
    keep = Options(include=["/always.py"])
    outside = [member.path for member in select(root, keep).members]
    git(root, "init", "-q")
    inside = [member.path for member in select(root, keep).members]
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    assert inside == sorted({*listed.split("\0"), "always.py"} - {""})
    assert outside == inside
