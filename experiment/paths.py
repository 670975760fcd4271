"""The one owner of paths under CHARTER_HOME."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """CHARTER_HOME and what lies where in it. Nothing is created until somebody writes."""

    root: Path

    @classmethod
    def find(cls, given: str | Path | None = None) -> Home:
        """The given folder, else `$CHARTER_HOME`, else `~/.charter`."""
        chosen = given or os.environ.get("CHARTER_HOME") or Path.home() / ".charter"
        return cls(Path(chosen).expanduser().absolute())

    @property
    def ledger_url(self) -> str:
        """`$CHARTER_LEDGER_URL` (PostgreSQL for a team), else SQLite in the home."""
        return os.environ.get("CHARTER_LEDGER_URL") or f"sqlite:///{self.root / 'ledger.sqlite'}"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def keys(self) -> Path:
        """Ed25519 signing key and job SSH keys, folder 0700, files 0600."""
        return self.root / "keys"

    @property
    def hosts(self) -> Path:
        """Instances of provider `local`, one folder each."""
        return self.root / "hosts"

    @property
    def known_hosts(self) -> Path:
        """Pinned SSH host keys, one file per instance."""
        return self.root / "known_hosts"

    @property
    def server(self) -> Path:
        """The Prefect server's home, password, and the records of what `up` started."""
        return self.root / "server"

    @property
    def limits(self) -> Path:
        return self.root / "limits.yaml"

    @property
    def store(self) -> Path:
        """The folder store used when a contract names no other."""
        return self.root / "store"

    def run_dir(self, job: str, run_id: str) -> Path:
        """The controller's own files of one run: resolved contract, bundle, archive parts."""
        return self.root / "runs" / job / run_id

    def results(self, job: str, run_id: str) -> Path:
        """The results folder that a person looks into."""
        return self.root / "results" / job / run_id
