"""The pages say what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.reference import page
from experiment import errors

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def test_every_command_is_documented():
    """docs/reference/cli.md is what the commands say of themselves; `make docs` writes it."""
    written = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert written == page(), "out of date: run `make docs`"


def test_every_exit_code_and_kind_is_documented():
    """Each class of the error tree has its exit code and kind in the table."""
    table = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    classes = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.CharterError)
    ]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    for each in classes:
        if each is errors.CharterError:
            continue
        assert any(
            line.startswith(f"| {each.exit_code} |") and each.kind in line for line in rows
        ), f"{each.__name__}: {each.exit_code} {each.kind}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    """Every relative link in a page names a file that is there."""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


def test_make_help_names_every_target():
    """`make help` and the Makefile's targets are the same."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", text, re.M)) - {"help"}
    assert set(re.findall(r'@echo "make ([a-z-]+)', text)) == targets


def test_every_dependency_has_its_reason():
    """docs/decisions/0001-dependencies.md has a line for each package of pyproject.toml."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    names = {re.split(r"[\[<>=! ]", line)[0] for line in wanted}
    page_text = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text(encoding="utf-8")
    assert {name for name in names if f"| {name} |" not in page_text} == set()


def test_every_dependency_is_pinned():
    """constraints.txt pins each package that pyproject.toml names, but those for a GPU only."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + extras["host"] + extras["test"] + extras["s3"]
    names = {re.split(r"[\[<>=! ]", line)[0].lower().replace("_", "-") for line in wanted}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {
        line.split("==")[0].lower().replace("_", "-") for line in lines if line.count("==") == 1
    }
    assert names - pinned == set()
