"""The folder of one local instance: the only owner of its paths, records and locks.

CHARTER_HOME/hosts/NAME/
  record.json   what was rented: written once by `create`
  meter.json    power state, segments, heartbeat: written by the meter, or by the provider
                once the meter is dead
  habits.json   bad habits for tests
  power-off     exists: somebody asked for the power to be cut
  meter.lock    held by the meter while it lives; control.lock by whoever changes power
  sshd/         host key, login key, configuration, log
  home/         HOME of what runs there;  data/  the data root
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment.errors import Busy, UsageError
from remote.agent.files import read_json, read_json_or_none, write_json

CONTROL_SECONDS = 15.0
SWITCHES = ("changed_port", "no_sshd")
NUMBERS = ("slow_start", "late_stop", "lost_after", "rate")


@dataclass(frozen=True)
class InstanceFolder:
    """Paths and records of one instance. Nothing is created until somebody writes."""

    root: Path

    @property
    def record_file(self) -> Path:
        return self.root / "record.json"

    @property
    def meter_file(self) -> Path:
        return self.root / "meter.json"

    @property
    def habits_file(self) -> Path:
        return self.root / "habits.json"

    @property
    def power_off(self) -> Path:
        return self.root / "power-off"

    @property
    def stop_script(self) -> Path:
        return self.root / "stop.sh"

    @property
    def meter_log(self) -> Path:
        return self.root / "meter.log"

    @property
    def sshd(self) -> Path:
        return self.root / "sshd"

    @property
    def host_key(self) -> Path:
        return self.sshd / "host_key"

    @property
    def login_key(self) -> Path:
        return self.sshd / "login_key"

    @property
    def authorized_keys(self) -> Path:
        return self.sshd / "authorized_keys"

    @property
    def sshd_config(self) -> Path:
        return self.sshd / "sshd_config"

    @property
    def sshd_log(self) -> Path:
        return self.sshd / "sshd.log"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def data(self) -> Path:
        return self.root / "data"

    def exists(self) -> bool:
        """Whether the instance was created and not released."""
        return self.record_file.exists()

    def record(self) -> dict[str, Any]:
        """What was rented: `name token rate currency gpu created_at env sshd user host_key notes`.

        Raises:
            FileNotFoundError: there is no such instance.
        """
        found: dict[str, Any] = read_json(self.record_file)
        return found

    def meter(self) -> dict[str, Any]:
        """`state segments heartbeat_at port sshd problem`; the state is `off` before any power."""
        found: dict[str, Any] | None = read_json_or_none(self.meter_file)
        return found or {
            "state": "off",
            "segments": [],
            "heartbeat_at": None,
            "port": None,
            "sshd": None,
            "problem": "",
        }

    def write_meter(self, meter: dict[str, Any]) -> None:
        write_json(self.meter_file, meter)

    def habits(self) -> dict[str, float | bool]:
        """The instance's bad habits; none when nobody wrote any."""
        found: dict[str, float | bool] | None = read_json_or_none(self.habits_file)
        return found or {}

    def meter_lives(self) -> bool:
        """Whether a meter holds its lock: true to the moment, also after a SIGKILL or a reboot."""
        try:
            with open(self.root / "meter.lock", "a", encoding="utf-8") as file:
                return not _try_lock(file.fileno(), fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    def hold_meter_lock(self) -> int | None:
        """Take the meter's lock for as long as the descriptor is open; None: another has it."""
        file = os.open(self.root / "meter.lock", os.O_RDWR | os.O_CREAT, 0o644)
        # `meter_lives` holds it for a moment, too.
        if _lock_within(file, 2.0):
            return file
        os.close(file)
        return None

    @contextlib.contextmanager
    def control(self) -> Iterator[None]:
        """One change of power at a time.

        Raises:
            Busy: another process is still changing it.
            FileNotFoundError: there is no such instance.
        """
        file = os.open(self.root / "control.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _lock_within(file, CONTROL_SECONDS):
                raise Busy(
                    "instance is being switched by another process",
                    self.root.name,
                    hint="try again in a moment",
                )
            yield
        finally:
            os.close(file)


def parse_habits(text: str) -> dict[str, float | bool]:
    """`slow_start=3 changed_port rate=9` as a mapping; spaces or commas between.

    slow_start, late_stop: seconds; lost_after: seconds of running until the instance is gone;
    rate: the price that the provider really charges; changed_port: another port at every
    power-on; no_sshd: `running`, and nothing answers.

    Raises:
        UsageError: an unknown name, or a number that is none.
    """
    habits: dict[str, float | bool] = {}
    for word in text.replace(",", " ").split():
        name, _, value = word.partition("=")
        try:
            if name in SWITCHES and value in ("", "1"):
                habits[name] = True
            elif name in NUMBERS:
                habits[name] = float(value)
            else:
                raise ValueError(word)
        except ValueError:
            raise UsageError(
                "habit is not known",
                "CHARTER_LOCAL_HABITS",
                expected=f"{', '.join(SWITCHES)}, or NAME=NUMBER with {', '.join(NUMBERS)}",
                found=repr(word),
            ) from None
    return habits


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_within(descriptor: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not _try_lock(descriptor, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
