"""The smallest trainer: says that it was started, works for a while, leaves its artifacts."""

import json
import os
import sys
import time
from pathlib import Path

root = Path(os.environ["AUTODL_RUN_ROOT"])
with (root / "launched.txt").open("a") as file:
    file.write(f"{os.getpid()}\n")
print("training", flush=True)
ends = time.monotonic() + float(os.environ.get("TRAIN_SECONDS", "0.3"))
step = 0
while time.monotonic() < ends or (root / "go-on").exists():
    step += 1
    with (root / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "loss": 1 / step}) + "\n")
    time.sleep(0.1)
if os.environ.get("TRAIN_EXIT"):
    sys.exit(int(os.environ["TRAIN_EXIT"]))
if not os.environ.get("TRAIN_NO_SUMMARY"):
    (root / "summary.json").write_text(json.dumps({"steps": step}))
