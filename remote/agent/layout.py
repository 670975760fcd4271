"""The one owner of paths on the host: where everything lies under the data root.

    DATA_ROOT/
      jobs/JOB/{bundles/TREE12/project, project → it, latest-run.txt, latest-pid.txt, …}
      models/SLUG-TREE12/     runs/JOB/RUN_ID/     venvs/KEY/     hf/
      .charter/{marker, answers, epochs, agent, requests, watchdog.json, locks}

Nobody else joins these names.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from remote.agent.errors import guard_refused
from remote.agent.files import sha256_bytes

JOB_PATTERN = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
RUN_ID_PATTERN = re.compile(r"[0-9]{8}-[0-9]{6}(?:-[0-9]+)?")


class RunRoot:
    """The files of one run. R3 names them; they outlive every process that writes them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def log(self) -> Path:
        return self.path / "logs" / "run.log"

    @property
    def log_link(self) -> Path:
        """`run.log`, where the earlier tools and their users look for it: a link to `log`."""
        return self.path / "run.log"

    @property
    def launch(self) -> Path:
        return self.path / "launch.json"

    @property
    def exit_record(self) -> Path:
        """`process-exit.json`: {status SUCCEEDED|FAILED, exit_code, finished_at}, written last."""
        return self.path / "process-exit.json"

    @property
    def preflight(self) -> Path:
        return self.path / "preflight.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def inventory(self) -> Path:
        return self.path / "artifact_inventory.json"

    @property
    def heartbeat(self) -> Path:
        """Touched by the supervisor while it lives."""
        return self.path / "heartbeat.json"

    @property
    def resources(self) -> Path:
        """Bounded history of GPU, CPU, memory and disk, one JSON object a line."""
        return self.path / "resources.jsonl"

    @property
    def verifier_log(self) -> Path:
        return self.path / "verifier.log"

    @property
    def environment(self) -> Path:
        """The frozen packages of the job's environment."""
        return self.path / "environment.txt"


class Layout:
    """Where things lie. Nothing is created until somebody writes.

    Args:
        data_root: absolute path of the data disk's folder.
        job: the job's slug; empty for steps that concern the host only.
        run_id: `YYYYMMDD-HHMMSS`, with `-2` and so on if taken; may be empty likewise.
        attempt: from 1; 0 for steps that concern no attempt.
    """

    def __init__(self, data_root: Path, job: str = "", run_id: str = "", attempt: int = 0) -> None:
        self.data_root = Path(data_root)
        self.job = job
        self.run_id = run_id
        self.attempt = attempt

    @property
    def charter(self) -> Path:
        return self.data_root / ".charter"

    @property
    def marker(self) -> Path:
        """Names this data root: a fresh disk has another one."""
        return self.charter / "marker"

    @property
    def watchdog(self) -> Path:
        return self.charter / "watchdog.json"

    @property
    def requests(self) -> Path:
        return self.charter / "requests"

    def answer(self, request_id: str) -> Path:
        """The recorded answer of a request. Jobs are kept apart: run ids are only times."""
        return self.charter / "answers" / (self.job or "_host") / f"{safe_name(request_id)}.json"

    @property
    def epoch(self) -> Path:
        """The highest epoch seen for the job."""
        return self.charter / "epochs" / (self.job or "_host")

    def lock(self, name: str) -> Path:
        return self.charter / "locks" / f"{safe_name(name)}.lock"

    def agent(self, sha256: str) -> Path:
        return self.charter / "agent" / f"agent-{sha256[:12]}.pyz"

    @property
    def job_dir(self) -> Path:
        return self.data_root / "jobs" / self.job

    @property
    def bundles(self) -> Path:
        return self.job_dir / "bundles"

    def bundle(self, tree_sha256: str) -> Path:
        return self.bundles / tree_sha256[:12]

    @property
    def project(self) -> Path:
        """A link to the project folder of the bundle in use."""
        return self.job_dir / "project"

    @property
    def latest_run(self) -> Path:
        return self.job_dir / "latest-run.txt"

    @property
    def latest_pid(self) -> Path:
        return self.job_dir / "latest-pid.txt"

    @property
    def early_preflight(self) -> Path:
        return self.job_dir / "early-preflight.json"

    @property
    def models(self) -> Path:
        return self.data_root / "models"

    @property
    def venvs(self) -> Path:
        return self.data_root / "venvs"

    def venv(self, key: str) -> Path:
        return self.venvs / key

    @property
    def hf_home(self) -> Path:
        return self.data_root / "hf"

    @property
    def hf_hub_cache(self) -> Path:
        return self.hf_home / "hub"

    def run_root(self, given: str | None = None) -> RunRoot:
        """The run's folder: the given one, which must lie inside the data root, else the usual.

        Raises:
            AgentError: guard_refused for a path outside the data root.
        """
        if given:
            return RunRoot(self.inside(given))
        return RunRoot(self.data_root / "runs" / self.job / self.run_id)

    def inside(self, path: str) -> Path:
        """The absolute path, links resolved, when it lies inside the data root.

        Raises:
            AgentError: guard_refused otherwise: steps touch nothing outside it.
        """
        if not os.path.isabs(path):
            raise guard_refused(
                f"path refused: {path!r}: expected an absolute path inside {str(self.data_root)!r}",
                "give the full path on the host",
            )
        root = os.path.realpath(str(self.data_root))
        real = os.path.realpath(path)
        if real != root and not real.startswith(root.rstrip("/") + "/"):
            raise guard_refused(
                f"path outside the data root: {path!r}: expected inside {root!r}, found {real!r}",
                "only files under the data root are touched",
            )
        return Path(real)


def safe_name(name: str) -> str:
    """One file name for any text: the same text gives the same name, other text another one."""
    plain = re.sub(r"[^A-Za-z0-9.-]", "_", name).lstrip(".")
    # `/` becomes `__` and stays readable; text with anything else that was replaced, or too long
    # for a file name, is told apart by its digest.
    if re.fullmatch(r"[A-Za-z0-9/-][A-Za-z0-9./-]*", name) and len(name) <= 120:
        return name.replace("/", "__")
    return f"{plain[:100]}-{sha256_bytes(name.encode('utf-8', 'surrogatepass'))[:16]}"
