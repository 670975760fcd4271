"""A real sealed results folder, made anew for each test that breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiment.evidence.chain import FIRST_PREV, entry_digest
from experiment.evidence.keys import SigningKey, signing_key
from experiment.evidence.seal import seal
from experiment.paths import Home
from remote.agent.files import sha256_bytes, write_json

JOB, RUN_ID = "tiny-grpo", "20260101-120000"


def chained(steps: list[str]) -> list[dict[str, Any]]:
    """A valid chain with one done entry a step."""
    entries: list[dict[str, Any]] = []
    previous = FIRST_PREV
    for seq, step in enumerate(steps, 1):
        entry: dict[str, Any] = {
            "seq": seq,
            "job": JOB,
            "run_id": RUN_ID,
            "attempt": 1,
            "step": step,
            "phase": "done",
            "from": "PLANNED",
            "to": "PREPARED",
            "at_utc": f"2026-01-01T12:00:{seq:02d}.000000Z",
            "epoch": 1,
            "inputs_sha256": sha256_bytes(step.encode()),
            "evidence": {"reward": 0.1 * seq, "name": "Überprüfung ✓"},
            "prev_sha256": previous,
        }
        entry["sha256"] = previous = entry_digest(entry)
        entries.append(entry)
    return entries


def fill(results: Path) -> None:
    """Files, a program, links and an inventory, as a collect leaves them."""
    contents = {
        "contract.yaml": b"schema: 1\njob: tiny-grpo\n",
        "logs/run.log": b"step 1\nstep 2\n" * 50,
        "metrics.jsonl": b'{"step": 1, "loss": 2.5}\n',
        "summary.json": b'{"reward": 0.9}',
        "model/adapter.safetensors": bytes(range(256)) * 16,
        "model/empty": b"",
        "model/größe 1.txt": b"x",
        "tool.sh": b"#!/bin/sh\n",
    }
    for name, data in contents.items():
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        (results / name).write_bytes(data)
    (results / "tool.sh").chmod(0o755)
    (results / "checkpoints").mkdir()
    (results / "checkpoints" / "latest").symlink_to("../model")
    files = [
        {"path": name, "bytes": len(data), "sha256": sha256_bytes(data)}
        for name, data in contents.items()
        if name != "contract.yaml"
    ]
    write_json(results / "artifact_inventory.json", {"schema_version": 1, "files": files})


def sealed(root: Path, steps: int = 5) -> tuple[Path, SigningKey]:
    """A folder sealed with a fresh key of a home of its own."""
    results = root / "results"
    results.mkdir(parents=True)
    fill(results)
    key = signing_key(Home(root / "home"))
    entries = chained([f"step{number}" for number in range(steps)])
    seal(results, job=JOB, run_id=RUN_ID, entries=entries, key=key)
    return results, key
