"""The meter of one local instance: one process for one power-on, detached from everything.

    python -m experiment.providers.local_meter FOLDER

Returns when the power is on (the instance is `starting`); the meter itself goes on in a session
of its own. It is the parent of sshd, writes `meter.json` (state, segments, a heartbeat every two
seconds), and cuts the power when the file `power-off` appears, on SIGTERM, or when its folder is
removed: every process of the instance gets SIGKILL, and then the meter ends. Exit codes of the
call: 0 power is on, 1 a meter is already running, 2 the instance is not there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiment.clock import Clock, SystemClock, iso
from experiment.errors import RemoteStepFailed
from experiment.providers.local_folder import InstanceFolder
from experiment.providers.local_processes import end_everything
from experiment.providers.local_sshd import free_port, start_sshd
from remote.agent.process import identify

TICK_SECONDS = 0.05
HEARTBEAT_SECONDS = 2.0
SSHD_PAUSE_SECONDS = 1.0


class Meter:
    """One power-on of one instance, from `starting` to `off` (or `lost`)."""

    def __init__(self, folder: InstanceFolder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._record = folder.record()
        self._state = folder.meter()
        self._sshd: subprocess.Popen[bytes] | None = None
        self._sshd_again = 0.0
        self._beaten = 0.0
        self._cut = False

    def switch_on(self) -> None:
        """The meter starts to count here."""
        self._state.update(state="starting", meter=identify(os.getpid()), sshd=None, problem="")
        self._state["segments"].append([iso(self._clock.now()), None])
        self._save()

    def run(self) -> None:
        """Live until the power is cut."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        habits = self._folder.habits()
        if self._live(float(habits.get("slow_start", 0))):
            self._boot(bool(habits.get("changed_port")), bool(habits.get("no_sshd")))
            lost_after = habits.get("lost_after")
            if self._live(None if lost_after is None else float(lost_after)):
                self._end("lost")
                return
        if not self._folder.exists():
            # Somebody removed the folder: nothing may go on, and nobody is left to be told.
            end_everything(self._record, self._state)
            return
        self._state["state"] = "stopping"
        self._save()
        self._cut = False
        self._live(float(habits.get("late_stop", 0)), heed_power_off=False)
        self._end("off")

    def _boot(self, changed_port: bool, no_sshd: bool) -> None:
        old = self._state.get("port")
        if self._record["sshd"] and not no_sshd:
            self._start_sshd(None if changed_port else old, old if changed_port else None)
        elif self._record["sshd"]:
            self._state["port"] = free_port(None if changed_port else old, other_than=None)
        self._state["state"] = "running"
        self._save()

    def _start_sshd(self, wanted: int | None, avoided: int | None = None) -> None:
        try:
            self._sshd, port = start_sshd(
                self._folder,
                self._record["sshd"],
                self._record["env"],
                wanted=wanted,
                avoided=avoided,
            )
        except RemoteStepFailed as error:
            # As with a real machine: it runs and costs, and cannot be reached.
            self._state["problem"] = error.line()
            return
        self._state.update(port=port, sshd=identify(self._sshd.pid), problem="")

    def _live(self, seconds: float | None, *, heed_power_off: bool = True) -> bool:
        """Let time pass; False when the power is to be cut before the seconds are over."""
        end = None if seconds is None else self._clock.monotonic() + seconds
        while end is None or self._clock.monotonic() < end:
            if not self._folder.exists() or self._cut:
                return False
            if heed_power_off and self._folder.power_off.exists():
                return False
            self._mind_sshd()
            if self._clock.monotonic() - self._beaten >= HEARTBEAT_SECONDS:
                self._save()
            self._clock.sleep(TICK_SECONDS)
        return True

    def _mind_sshd(self) -> None:
        """A server that ended by itself is started again, as an init system does."""
        if self._sshd is None or self._sshd.poll() is None:
            return
        if self._clock.monotonic() < self._sshd_again:
            return
        self._sshd_again = self._clock.monotonic() + SSHD_PAUSE_SECONDS
        self._start_sshd(self._state["port"])
        self._save()

    def _end(self, state: str) -> None:
        end_everything(self._record, self._state)
        if self._sshd is not None:
            self._sshd.wait()
        self._state["segments"][-1][1] = iso(self._clock.now())
        self._state.update(state=state, sshd=None)
        self._folder.power_off.unlink(missing_ok=True)
        self._save()

    def _save(self) -> None:
        self._beaten = self._clock.monotonic()
        self._state["heartbeat_at"] = iso(self._clock.now())
        # Not into a folder that was removed meanwhile: writing would make it again.
        if self._folder.exists():
            with contextlib.suppress(FileNotFoundError):
                self._folder.write_meter(self._state)

    def _on_signal(self, number: int, frame: Any) -> None:
        del number, frame
        self._cut = True


def main(arguments: list[str]) -> int:
    """Switch the instance on and leave its meter behind; returns the exit code."""
    folder = InstanceFolder(Path(arguments[0]))
    if not folder.exists():
        return 2
    # Held by inheritance for as long as the meter lives; sshd never gets it.
    if folder.hold_meter_lock() is None:
        return 1
    ready, told = os.pipe()
    if os.fork():
        os.close(told)
        return 0 if os.read(ready, 1) == b"1" else 70
    os.close(ready)
    os.setsid()
    _leave_streams(folder.meter_log)
    meter = Meter(folder, SystemClock())
    meter.switch_on()
    os.write(told, b"1")
    os.close(told)
    meter.run()
    return 0


def _leave_streams(log: Path) -> None:
    """Nobody's terminal or pipe stays open because of the meter."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(null)
    os.close(out)
    os.chdir("/")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
