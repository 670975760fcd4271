"""What Charter itself costs: the wall time of a whole life, less the trainer's own.

Measured from the typed command to its end, `charter run --yes`, on examples/tiny-grpo: once on a
fresh host (environment made, packages checked by pip) and then on a host that has them, server and
runners up. The trainer's time is its exit record's: from its start to its end on the host. What
goes on beside the trainer (monitoring, the wait for its first line) is therefore free, as it is
for a person.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from deployments import server
from experiment.clock import SystemClock
from experiment.ledger import Ledger
from experiment.paths import Home
from experiment.providers.registry import get_provider
from experiment.steps.shutdown import confirm_off

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "tiny-grpo" / "contract.yaml"
CHARTER = Path(sys.executable).with_name("charter")
ROUNDS = 3


def measure() -> dict[str, Any]:
    """`orchestration_seconds` (median, warm), the rounds behind it, and the cold figure."""
    with tempfile.TemporaryDirectory(prefix="charter-bench-") as folder:
        home = Home(Path(folder))
        server.up(home)
        try:
            cold = _life(home)
            warm = [_life(home) for _ in range(ROUNDS)]
        finally:
            server.down(home)
            _give_back(home)
    middle = sorted(warm, key=lambda life: life["seconds"])[ROUNDS // 2]
    return {
        "orchestration_seconds": round(median(life["seconds"] for life in warm), 2),
        "orchestration_target_seconds": 20,
        "orchestration_rounds": [round(life["seconds"], 2) for life in warm],
        "orchestration_cold_host_seconds": round(cold["seconds"], 2),
        "orchestration_trainer_seconds": round(middle["trainer"], 2),
        "orchestration_verifier_seconds": round(middle["verifier"], 2),
        "orchestration_steps": middle["steps"],
    }


def _life(home: Home) -> dict[str, Any]:
    """One run that keeps its host for the next: seconds without the trainer's, and step by step."""
    started = time.monotonic()
    done = subprocess.run(
        [
            CHARTER,
            "--home",
            home.root,
            "--json",
            "run",
            EXAMPLE,
            "--yes",
            "--set",
            "billing.shutdown=keep",
        ],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    wall = time.monotonic() - started
    body = json.loads(done.stdout)
    if done.returncode != 0:
        raise RuntimeError(f"the life that was to be measured failed: {body}")
    entries = Ledger.existing(home).entries(body["run_id"])
    trainer = _trainer_seconds(entries)
    return {
        "seconds": wall - trainer,
        "trainer": trainer,
        "verifier": _verifier_seconds(entries),
        "steps": _steps(entries),
    }


def _trainer_seconds(entries: list[dict[str, Any]]) -> float:
    evidence = {e["step"]: e["evidence"] for e in entries if e["phase"] == "done"}
    begin = datetime.fromisoformat(evidence["launch"]["started_at"])
    end = datetime.fromisoformat(evidence["monitor"]["exit_record"]["finished_at"])
    return (end - begin).total_seconds()


def _verifier_seconds(entries: list[dict[str, Any]]) -> float:
    """The run's own verifier, the project's program like the trainer: part of the figure, named."""
    done = next(e for e in entries if e["step"] == "verify" and e["phase"] == "done")
    return float(done["evidence"]["verifier"]["seconds"])


def _steps(entries: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds from each step's intent to its end."""
    begun: dict[str, datetime] = {}
    seconds: dict[str, float] = {}
    for entry in entries:
        moment = datetime.fromisoformat(entry["at_utc"])
        if entry["phase"] == "intent":
            begun[entry["step"]] = moment
        elif entry["phase"] == "done":
            seconds[entry["step"]] = round((moment - begun[entry["step"]]).total_seconds(), 2)
    return seconds


def _give_back(home: Home) -> None:
    clock = SystemClock()
    provider = get_provider("local", home, clock)
    for instance in provider.list():
        confirm_off(provider, instance.id, clock, by="benchmark")
        provider.release(instance.id)
