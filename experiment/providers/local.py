"""Provider `local`: instances on this very machine, behind a real SSH server on loopback.

Each lives in `CHARTER_HOME/hosts/NAME` with a meter process of its own, which is what costs. What
runs on it runs as the present user; nothing that it did not start is ever ended.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import experiment
from experiment.clock import Clock, iso, parse_iso
from experiment.errors import Busy, NotFound, RemoteStepFailed, UsageError
from experiment.hosts.base import Endpoint
from experiment.paths import Home
from experiment.providers.base import (
    Capabilities,
    CreateRequest,
    Instance,
    InstanceState,
    Segment,
)
from experiment.providers.local_box import base_environment, host_environment, list_gpus
from experiment.providers.local_folder import InstanceFolder, parse_habits
from experiment.providers.local_processes import end_everything, processes_of
from experiment.providers.local_sshd import (
    LOOPBACK,
    check_config,
    find_sshd,
    free_port,
    make_keys,
    write_config,
)
from remote.agent.files import read_json_or_none, write_json

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
START_SECONDS = 30.0
REMAINS_SECONDS = 3600.0
REPOSITORY = Path(experiment.__file__).resolve().parent.parent
SCRIPTS = Path(__file__).resolve().parent


class LocalProvider:
    """Rents this machine to itself.

    Args:
        environ: where `CHARTER_LOCAL_BASE` (the base environment), `CHARTER_LOCAL_SSHD` and
            `CHARTER_LOCAL_HABITS` are read; this process's environment when left out.
    """

    name = "local"
    capabilities = Capabilities()

    def __init__(self, home: Home, clock: Clock, environ: Mapping[str, str] | None = None) -> None:
        self._home = home
        self._clock = clock
        self._environ = os.environ if environ is None else environ

    def create(self, request: CreateRequest) -> Instance:
        """Make the instance and switch it on; one that is there already is returned as it is.

        Raises:
            UsageError: the name is no file name, or a habit is not known.
            RemoteStepFailed: sshd can't run here.
        """
        if not NAME.fullmatch(request.name):
            raise UsageError(
                "instance name refused",
                repr(request.name),
                expected="letters, digits, dots, dashes, at most 100",
            )
        folder = self._folder(request.name)
        if not folder.exists():
            self._build(folder, request)
        if not folder.meter()["segments"]:
            # Also where an earlier `create` ended between building and switching on.
            self.power_on(request.name)
        return self.status(request.name)

    def find(self, name: str) -> Instance | None:
        found = self.status(name)
        return None if found.state in ("lost", "released") else found

    def list(self) -> list[Instance]:
        if not self._home.hosts.is_dir():
            return []
        names = sorted(path.parent.name for path in self._home.hosts.glob("*/record.json"))
        found = (self.find(name) for name in names if not name.startswith("."))
        return [instance for instance in found if instance is not None]

    def status(self, instance_id: str) -> Instance:
        folder = self._folder(instance_id)
        try:
            record = folder.record()
        except FileNotFoundError:
            return self._gone(instance_id)
        meter = self._true_meter(folder, record)
        return _instance(folder, record, meter, meter["state"])

    def power_on(self, instance_id: str) -> None:
        folder = self._existing(instance_id)
        with folder.control():
            self._let_end(folder)
            if folder.meter_lives():
                if folder.meter()["state"] == "stopping" or folder.power_off.exists():
                    raise Busy(
                        "instance is still stopping",
                        instance_id,
                        hint="wait until its status is off",
                    )
                return
            self._clean_up(folder)
            folder.power_off.unlink(missing_ok=True)
            self._start_meter(folder)

    def power_off(self, instance_id: str) -> None:
        folder = self._folder(instance_id)
        if not folder.exists():
            return
        with folder.control():
            if folder.meter_lives():
                folder.power_off.touch()
            else:
                self._clean_up(folder)

    def release(self, instance_id: str) -> None:
        folder = self._folder(instance_id)
        if not folder.exists():
            return
        with folder.control():
            self._let_end(folder)
            if folder.meter_lives():
                raise Busy(
                    "instance is not off",
                    instance_id,
                    expected="off",
                    found=folder.meter()["state"],
                    hint="power it off first",
                )
            record = folder.record()
            self._clean_up(folder)
            # The receipt outlives the folder: it is the confirmation, with the last segments.
            receipt = {"record": record, "meter": folder.meter(), "at": iso(self._clock.now())}
            write_json(self._receipt(instance_id), _without_secrets(receipt))
            # Renamed first, so that no half-removed folder ever looks like an instance.
            grave = folder.root.with_name(f".released-{instance_id}-{record['token'][:8]}")
            folder.root.rename(grave)
        shutil.rmtree(grave)
        self._remove_remains()

    def _build(self, folder: InstanceFolder, request: CreateRequest) -> None:
        """Build aside, then rename: a name is taken by one caller only."""
        habits = parse_habits(self._environ.get("CHARTER_LOCAL_HABITS", ""))
        sshd, reason = find_sshd(self._environ)
        token = uuid.uuid4().hex
        made = InstanceFolder(folder.root.with_name(f".creating-{request.name}-{token[:8]}"))
        made.root.mkdir(parents=True, mode=0o700)
        try:
            env = host_environment(
                folder,
                request.name,
                token,
                base_environment(REPOSITORY, self._environ),
                self._environ,
            )
            record = {
                "name": request.name,
                "token": token,
                "rate": str(habits.get("rate", request.rate)),
                "currency": request.currency,
                "gpu": list_gpus(self._environ),
                "created_at": iso(self._clock.now()),
                "user": getpass.getuser(),
                "env": env,
                "sshd": sshd,
                "host_key": make_keys(made) if sshd else None,
                "notes": [f"no SSH is involved: {reason}"] if reason else [],
            }
            if sshd:
                write_config(made, sshd, free_port(), env)
                check_config(made, sshd)
            self._furnish(made, habits)
            write_json(made.record_file, record, mode=0o600)
            made.root.rename(folder.root)
        except BaseException as error:
            shutil.rmtree(made.root)
            # Somebody else took the name meanwhile: theirs is the instance.
            if not (isinstance(error, OSError) and folder.exists()):
                raise

    def _remove_remains(self) -> None:
        """What a killed `create` or `release` left half done; never what one is just doing."""
        for path in [*self._home.hosts.glob(".creating-*"), *self._home.hosts.glob(".released-*")]:
            try:
                age = self._clock.now().timestamp() - path.stat().st_mtime
            except FileNotFoundError:
                continue
            if age > REMAINS_SECONDS:
                shutil.rmtree(path, ignore_errors=True)

    def _furnish(self, made: InstanceFolder, habits: dict[str, float | bool]) -> None:
        made.home.mkdir()
        made.data.mkdir()
        write_json(made.habits_file, habits)
        shutil.copyfile(SCRIPTS / "local_stop.sh", made.stop_script)
        shutil.copyfile(SCRIPTS / "local_profile.sh", made.home / ".profile")

    def _start_meter(self, folder: InstanceFolder) -> None:
        record = folder.record()
        # The host's own environment: neither the controller's secrets nor its fault points.
        env = {**record["env"], "PYTHONPATH": str(REPOSITORY)}
        started = subprocess.run(
            [sys.executable, "-m", "experiment.providers.local_meter", str(folder.root)],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        if started.returncode:
            raise RemoteStepFailed(
                "instance can't be switched on",
                folder.root.name,
                found=started.stderr.strip()[-400:] or f"exit {started.returncode}",
                hint=f"see {folder.meter_log}",
            )

    def _let_end(self, folder: InstanceFolder) -> None:
        """Between its last word and its end a meter still holds its lock for a moment."""
        end = time.monotonic() + START_SECONDS
        while folder.meter()["state"] in ("off", "lost") and folder.meter_lives():
            if time.monotonic() > end:
                raise Busy("meter does not end", folder.root.name, hint=f"see {folder.meter_log}")
            time.sleep(0.005)

    def _true_meter(self, folder: InstanceFolder, record: dict[str, Any]) -> dict[str, Any]:
        """The meter's record, corrected where the meter died without a last word."""
        meter = folder.meter()
        if meter["state"] in ("off", "lost") or folder.meter_lives():
            return meter
        meter = folder.meter()  # it may have ended in good order between the two looks
        if meter["state"] in ("off", "lost"):
            return meter
        if processes_of(record, meter):
            # Something runs and nobody measures it: it counts as billing until it is cleaned up.
            return {**meter, "state": "unknown"}
        return _closed(meter, meter["heartbeat_at"])

    def _clean_up(self, folder: InstanceFolder) -> None:
        """End what a dead meter left behind, and write down when."""
        record, meter = folder.record(), folder.meter()
        left = end_everything(record, meter)
        if meter["state"] not in ("off", "lost"):
            at = iso(self._clock.now()) if left else meter["heartbeat_at"]
            folder.write_meter(_closed(meter, at))
        folder.power_off.unlink(missing_ok=True)

    def _existing(self, instance_id: str) -> InstanceFolder:
        folder = self._folder(instance_id)
        if not folder.exists() or folder.meter()["state"] == "lost":
            raise NotFound(
                "instance is not known to provider local",
                instance_id,
                hint="see `charter rentals`",
                exit_code=1,
            )
        return folder

    def _gone(self, instance_id: str) -> Instance:
        receipt = read_json_or_none(self._receipt(instance_id))
        folder = self._folder(instance_id)
        if receipt:
            return _instance(folder, receipt["record"], receipt["meter"], "released")
        return Instance(
            instance_id, instance_id, "lost", Decimal(0), "", {}, None, str(folder.data), None, None
        )

    def _folder(self, name: str) -> InstanceFolder:
        return InstanceFolder(self._home.hosts / name)

    def _receipt(self, name: str) -> Path:
        return self._home.cache / "released-hosts" / f"{name}.json"


def _instance(
    folder: InstanceFolder, record: dict[str, Any], meter: dict[str, Any], state: InstanceState
) -> Instance:
    segments: tuple[Segment, ...] = tuple(
        (parse_iso(start), parse_iso(stop) if stop else None) for start, stop in meter["segments"]
    )
    return Instance(
        id=record["name"],
        name=record["name"],
        state=state,
        rate=Decimal(record["rate"]),
        currency=record["currency"],
        gpu=record["gpu"],
        endpoint=_endpoint(folder, record, meter) if state in ("running", "unknown") else None,
        data_root=str(folder.data),
        started_at=segments[-1][0] if segments else None,
        stopped_at=segments[-1][1] if segments else None,
        segments=segments,
        stop_argv=("/bin/sh", str(folder.stop_script)),
        involves_ssh=bool(record["sshd"]),
        notes=(*record["notes"], *filter(None, [meter["problem"]])),
    )


def _endpoint(
    folder: InstanceFolder, record: dict[str, Any], meter: dict[str, Any]
) -> Endpoint | None:
    if not record["sshd"]:
        env = {
            **record["env"],
            "USER": record["user"],
            "LOGNAME": record["user"],
            "SHELL": "/bin/sh",
        }
        return Endpoint(kind="local", env=tuple(sorted(env.items())), root=str(folder.home))
    if not meter["port"]:
        return None
    return Endpoint(
        "ssh", LOOPBACK, meter["port"], record["user"], folder.login_key, record["host_key"]
    )


def _closed(meter: dict[str, Any], at: str) -> dict[str, Any]:
    segments = [[start, stop or at] for start, stop in meter["segments"]]
    return {**meter, "state": "off", "segments": segments, "sshd": None}


def _without_secrets(receipt: dict[str, Any]) -> dict[str, Any]:
    """A receipt keeps no environment: it may name an index with a password in its address."""
    return {**receipt, "record": {**receipt["record"], "env": {}}}
