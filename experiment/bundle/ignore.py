"""What git would ignore: asked of git inside a repository, of pathspec outside one.

Only the project's own rules count: a person's global excludes and settings do not, so that two
people get one bundle from one tree. Who owns the folder does not matter either.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pathspec import GitIgnoreSpec

from experiment.errors import GuardRefused, NotFound

GIT_TIMEOUT = 120.0
NEUTRAL = (
    "-c",
    f"core.excludesFile={os.devnull}",
    "-c",
    f"core.attributesFile={os.devnull}",
    "-c",
    "safe.directory=*",
    # A repository's own settings may name programs to run; listing files needs none.
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.untrackedCache=false",
)


class Rules(Protocol):
    """Whether one path, relative to the folder the rules are for, is ignored."""

    def ignored(self, path: str, folder: bool) -> bool: ...


def rules_for(folder: Path) -> Rules:
    """Git's rules when the folder is in a work tree (and not itself ignored there), else
    gitignore files read by pathspec.

    Raises:
        NotFound: a repository, but no git here (exit 127).
        GuardRefused: a repository that git can't read.
    """
    if not any(os.path.lexists(parent / ".git") for parent in (folder, *folder.parents)):
        return FileRules(folder)
    answer = _git(folder, "rev-parse", "--is-inside-work-tree")
    if answer.returncode != 0 and b"not a git repository" in answer.stderr:
        return FileRules(folder)
    _check(answer, folder)
    if answer.stdout.strip() != b"true" or _root_ignored(folder):
        return FileRules(folder)
    return GitRules(folder)


def is_repository(folder: Path) -> bool:
    """True when a folder is the top of a repository or submodule of its own."""
    return os.path.lexists(folder / ".git")


class GitRules:
    """What git lists: tracked files, and untracked ones that are not ignored."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        listed = _names(_git(folder, "ls-files", "-z", "--cached", "--others", *EXCLUDES), folder)
        left = _names(
            _git(folder, "ls-files", "-z", "--others", "--ignored", "--directory", *EXCLUDES),
            folder,
        )
        self._listed = frozenset(name.rstrip("/") for name in listed)
        self._ignored = frozenset(name.rstrip("/") for name in left)

    def ignored(self, path: str, folder: bool) -> bool:
        if path in self._listed:
            return False
        if path in self._ignored:
            return True
        # Folders are entered; what git does not list at all (sockets, files made since) is asked.
        return not folder and self._asked(path)

    def _asked(self, path: str) -> bool:
        answer = _git(self._folder, "check-ignore", "--quiet", "--no-index", "--", f"./{path}")
        if answer.returncode not in (0, 1):
            _check(answer, self._folder)
        return answer.returncode == 0


EXCLUDES = ("--exclude-standard",)


class FileRules:
    """The .gitignore files of a tree outside any repository; the deepest that speaks decides."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._specs: dict[str, GitIgnoreSpec | None] = {}

    def ignored(self, path: str, folder: bool) -> bool:
        parts = path.split("/")
        for depth in range(len(parts) - 1, -1, -1):
            spec = self._spec("/".join(parts[:depth]))
            if spec is None:
                continue
            verdict = last_word(spec, "/".join(parts[depth:]) + ("/" if folder else ""))
            if verdict is not None:
                return verdict
        return False

    def _spec(self, parent: str) -> GitIgnoreSpec | None:
        if parent not in self._specs:
            self._specs[parent] = read_patterns(self._folder / parent / ".gitignore")
        return self._specs[parent]


def last_word(spec: GitIgnoreSpec, path: str) -> bool | None:
    """What the last pattern that means this very path says: ignored, not ignored, or nothing.

    pathspec's own check also lets a pattern for a folder speak for everything below it, which
    differs from git where a later pattern takes the folder back in (`a`, `!/a`, path `a/a`).
    Folders are walked here from the top, so each path is asked for itself alone.
    """
    for pattern in reversed(spec.patterns):
        regex = pattern.regex
        if pattern.include is not None and regex is not None and _means(regex, path):
            return bool(pattern.include)
    return None


def _means(regex: re.Pattern[str], path: str) -> bool:
    """Whether a pattern's regex matches the path itself, not only a folder above it."""
    text = regex.pattern
    if text == ".":  # `*`, `**`: everything
        return True
    if text == "(?P<ps_d>/)":  # `*/`: every folder
        return path.endswith("/")
    if text.endswith("/"):  # `a/**`: everything below a, not a itself
        match = regex.match(path)
        return match is not None and match.end() < len(path)
    return regex.fullmatch(path) is not None


def read_patterns(file: Path) -> GitIgnoreSpec | None:
    """The patterns of one .gitignore, or None without one. Git does not follow a link there.

    Raises:
        GuardRefused: it can't be read, or holds a pattern that can't be.
    """
    if not file.is_file() or file.is_symlink():
        return None
    try:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
        return GitIgnoreSpec.from_lines(text.splitlines())
    except (OSError, ValueError) as error:
        raise GuardRefused(
            "unreadable ignore rules", str(file), found=str(error), hint="correct the file"
        ) from None


def _root_ignored(folder: Path) -> bool:
    """A folder that the repository around it ignores is no part of that repository."""
    if is_repository(folder):
        return False
    return _git(folder, "check-ignore", "--quiet", ".").returncode == 0


def _names(answer: subprocess.CompletedProcess[bytes], folder: Path) -> list[str]:
    _check(answer, folder)
    return [os.fsdecode(name) for name in answer.stdout.split(b"\0") if name]


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {
        **clean,
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    argv: Sequence[str] = ("git", *NEUTRAL, "-C", str(folder), *arguments)
    try:
        return subprocess.run(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT,
            check=False,
        )
    except FileNotFoundError:
        raise NotFound(
            "missing program",
            "git",
            expected=f"git, since {folder} is in a repository",
            found="nothing",
            hint="install git",
            exit_code=127,
        ) from None
    except subprocess.TimeoutExpired:
        raise GuardRefused(
            "repository unreadable",
            str(folder),
            expected=f"an answer within {GIT_TIMEOUT:g} s",
            found="none",
            hint=f"run `git -C {folder} status`",
        ) from None


def _check(answer: subprocess.CompletedProcess[bytes], folder: Path) -> None:
    # Git goes on after a folder that it can't open; what is in there must not be lost in silence.
    unopened = b"could not open directory" in answer.stderr
    if answer.returncode == 0 and not unopened:
        return
    lines = answer.stderr.decode("utf-8", "replace").strip().splitlines()
    raise GuardRefused(
        "repository unreadable",
        str(folder),
        found=lines[0] if lines else f"exit {answer.returncode} of git",
        hint="repair it, or exclude the folder",
    )
