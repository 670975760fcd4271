"""What of a project enters its payload, decided path by path.

In this order: what never enters; `exclude`; `include` and allowed adapters; the fixed exclusions;
weights; what git ignores. Nested repositories and submodules follow their own ignore rules.
Links are kept as links and never followed. A folder that is left out whole counts once.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

from experiment.bundle.fixed import (
    OWN_FOLDER,
    Reason,
    file_left_out,
    folder_left_out,
    is_weights,
    never,
)
from experiment.bundle.ignore import Rules, is_repository, rules_for
from experiment.errors import CharterError, ContractInvalid, GuardRefused, NotFound

LARGEST = 10
MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Member:
    """A file (size, exec bit) or link (target) of the project; `path` relative, with `/`."""

    path: str
    size: int
    executable: bool
    link: str | None


@dataclass(frozen=True)
class Selection:
    """The members in order of path, and how much was left out for which reason."""

    root: Path
    members: tuple[Member, ...]
    excluded: dict[str, int]
    largest: tuple[dict[str, object], ...]


@dataclass(frozen=True)
class Options:
    """A person's own patterns (gitignore syntax, from the project's root) and paths to skip."""

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    adapters: Sequence[str] = ()
    adapters_max_mib: float = 512
    skip: Sequence[Path] = ()


def select(directory: Path, options: Options | None = None) -> Selection:
    """Decide what enters. Reads folders and links, no file's content.

    Raises:
        NotFound: no such folder (exit 3); no git where one is needed (127).
        GuardRefused: links leading outside, absolute or dangling; sockets, FIFOs, devices;
            unreadable files; names that are not UTF-8; adapters over their cap. All at once.
        ContractInvalid: nothing would enter.
    """
    root = Path(os.path.realpath(directory))
    if not root.is_dir():
        raise NotFound(
            "missing project folder",
            str(directory),
            expected="a folder",
            found="a file" if root.exists() else "nothing",
            hint="correct project.directory",
        )
    walk = _Walk(root, options or Options())
    walk.folder("", rules_for(root), "")
    walk.cap_adapters()
    members = tuple(sorted(walk.members, key=lambda member: member.path))
    if walk.faults:
        raise _together(walk.faults, directory)
    if not members:
        raise ContractInvalid(
            "empty project",
            str(directory),
            expected="at least one file that is not excluded",
            found="none" if not walk.excluded else f"{sum(walk.excluded.values())} left out",
            hint="check .gitignore and project.include",
        )
    return Selection(root, members, dict(sorted(walk.excluded.items())), largest_folders(members))


def largest_folders(members: Iterable[Member]) -> tuple[dict[str, object], ...]:
    """The folders that hold most bytes, files in their subfolders included; `.` is the root's."""
    totals: Counter[str] = Counter()
    for member in members:
        parts = member.path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            totals["/".join(parts[:depth])] += member.size
        if not parts:
            totals["."] += member.size
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    return tuple({"path": path, "bytes": size} for path, size in ranked[:LARGEST])


@dataclass
class _Walk:
    root: Path
    options: Options
    members: list[Member] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)
    faults: list[CharterError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._include = GitIgnoreSpec.from_lines(self.options.include)
        self._exclude = GitIgnoreSpec.from_lines(self.options.exclude)
        self._adapters = GitIgnoreSpec.from_lines(self.options.adapters)
        # Something may be asked for inside a folder that would be left out whole.
        self._look_everywhere = bool(self.options.include or self.options.adapters)
        self._skip = frozenset(os.path.realpath(path) for path in self.options.skip)

    def folder(self, relative: str, rules: Rules, top: str, reason: Reason | None = None) -> None:
        """Walk one folder.

        Args:
            relative: its path from the root, "" for the root itself.
            rules: the ignore rules of the repository or tree it lies in.
            top: that repository's path from the root.
            reason: why the folder is left out, when it is walked only for what is asked for.
        """
        try:
            with os.scandir(self.root / relative) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            self._fault("unreadable folder", relative, error.strerror or "", "check its rights")
            return
        for entry in entries:
            path = f"{relative}/{entry.name}" if relative else entry.name
            if not _is_utf8(path):
                if not self._left_out(path, entry, rules, top, reason):
                    self._fault("file name is not UTF-8", repr(path), "", "rename or exclude it")
            elif entry.path in self._skip:  # real already: the root is, and links are not followed
                self.excluded["fixed"] += 1
            elif entry.is_dir(follow_symlinks=False):
                self._subfolder(path, entry, rules, top, reason)
            elif not self._left_out(path, entry, rules, top, reason):
                self._take(path, entry)

    def _subfolder(
        self, path: str, entry: os.DirEntry[str], rules: Rules, top: str, reason: Reason | None
    ) -> None:
        name = path.rsplit("/", 1)[-1]
        if name == ".git":
            return  # no part of any project: not even counted
        if path == OWN_FOLDER:
            self.excluded["fixed"] += 1
            return
        if self._exclude.match_file(f"{path}/"):
            self.excluded["option"] += 1
            return
        why = reason or self._folder_reason(path, rules, top)
        if why is not None and not self._look_everywhere:
            self.excluded[why] += 1
            return
        if is_repository(Path(entry.path)):
            self.folder(path, rules_for(Path(entry.path)), path, why)
        else:
            self.folder(path, rules, top, why)

    def _folder_reason(self, path: str, rules: Rules, top: str) -> Reason | None:
        if folder_left_out(path):
            return "fixed"
        return "ignored" if rules.ignored(_below(path, top), True) else None

    def _left_out(
        self, path: str, entry: os.DirEntry[str], rules: Rules, top: str, reason: Reason | None
    ) -> bool:
        why = self._reason(path, entry, rules, top, reason)
        if why is None:
            return False
        if path.rsplit("/", 1)[-1] != ".git":
            self.excluded[why] += 1
        return True

    def _reason(
        self, path: str, entry: os.DirEntry[str], rules: Rules, top: str, reason: Reason | None
    ) -> Reason | None:
        if never(path):
            return "fixed"
        if self._exclude.match_file(path):
            return "option"
        if self._include.match_file(path):
            return None
        if is_weights(path) and self._adapters.match_file(path):
            return None
        if reason is not None:
            return reason
        # A link to a folder stands for the folder: `venv -> /opt/venv` is one more venv.
        if entry.is_symlink() and folder_left_out(path) and os.path.isdir(entry.path):
            return "fixed"
        by_name = file_left_out(path)
        if by_name is not None:
            return by_name
        return "ignored" if rules.ignored(_below(path, top), False) else None

    def _take(self, path: str, entry: os.DirEntry[str]) -> None:
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            self._take_link(path)
        elif not stat.S_ISREG(status.st_mode):
            kind = _kind(status.st_mode)
            self._fault(f"{kind} in the project", path, "", "remove or exclude it")
        elif not os.access(entry.path, os.R_OK):
            self._fault("unreadable file", path, "", "check its rights, or exclude it")
        else:
            executable = bool(status.st_mode & stat.S_IXUSR)
            self.members.append(Member(path, status.st_size, executable, None))

    def _take_link(self, path: str) -> None:
        place = self.root / path
        target = os.readlink(place)
        hint = "make it relative and inside, or exclude it"
        inside = os.path.normpath(os.path.join(os.path.dirname(path), target))
        real = os.path.realpath(place)
        if os.path.isabs(target):
            self._fault("absolute link", path, "an absolute path", hint)
        elif inside.split("/")[0] == ".." or not _within(real, str(self.root)):
            self._fault("link leads outside the project", path, repr(target), hint)
        elif not os.path.exists(place):
            self._fault("dangling link", path, repr(target), "restore its target, or exclude it")
        elif not _is_utf8(target):
            self._fault("link target is not UTF-8", path, repr(target), hint)
        else:
            self.members.append(Member(path, 0, False, target))

    def cap_adapters(self) -> None:
        """Weights may travel only while all of them together are small (requirement 18)."""
        weights = [member for member in self.members if is_weights(member.path)]
        total = sum(member.size for member in weights)
        if total > self.options.adapters_max_mib * MEBIBYTE:
            biggest = max(weights, key=lambda member: member.size)
            self._fault(
                "weights too large for the payload",
                biggest.path,
                f"{total} bytes in {len(weights)} files",
                "make it an input, or raise project.adapters.max_mib",
                expected=f"at most {self.options.adapters_max_mib:g} MiB",
            )

    def _fault(self, what: str, path: str, found: str, hint: str, expected: str = "") -> None:
        self.faults.append(GuardRefused(what, path, expected=expected, found=found, hint=hint))


def _together(faults: Sequence[CharterError], directory: Path) -> CharterError:
    if len(faults) == 1:
        return faults[0]
    return GuardRefused(
        "project refused",
        str(directory),
        found=f"{len(faults)} faults, the first: {faults[0].line()}",
        details=[item.line() for item in faults],
    )


def _below(path: str, top: str) -> str:
    return path[len(top) + 1 :] if top else path


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _is_utf8(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _kind(mode: int) -> str:
    if stat.S_ISSOCK(mode):
        return "socket"
    return "FIFO" if stat.S_ISFIFO(mode) else "device"
