"""seal: the controller's evidence beside the host's, and one signature over all of it."""

from __future__ import annotations

import shutil

from experiment.contract.render import render_contract
from experiment.evidence.keys import signing_key
from experiment.evidence.seal import seal as seal_folder
from experiment.evidence.seal import seal_archive
from experiment.ledger import Evidence
from experiment.results.report import render_report
from experiment.steps.session import Session
from experiment.steps.shutdown import cost_of
from experiment.steps.store import put
from remote.agent.files import write_atomic, write_json


def seal(session: Session) -> Evidence:
    """Write the controller's files, sign count and head of the chain with every file's digest.

    Raises:
        OSError: the results folder cannot be written.
    """
    verified = session.recorded("verify")

    def do(_begun: Evidence) -> Evidence:
        entries = session.ledger.entries(session.run_id)
        _controller_files(session, entries)
        archive = session.results / f"{session.job}-results.tar.gz"
        key = signing_key(session.home)
        seal_archive(archive, job=session.job, run_id=session.run_id, key=key)
        sealed = seal_folder(
            session.results,
            job=session.job,
            run_id=session.run_id,
            entries=entries,
            key=key,
        )
        if session.is_done("store"):
            # The copy in the store must verify on its own: it gets ledger, report and seal too.
            put(session)
        if session.contract.billing.shutdown == "keep":
            # Nothing of this run is on the host any more that is not here: another run may have it.
            session.rentals.release_lease(session.rental.name, session.run_id)
        return sealed

    return session.controller.once("seal", {"archive": verified["archive_sha256"]}, do)


def _controller_files(session: Session, entries: list[dict[str, object]]) -> None:
    results = session.results
    write_atomic(results / "contract.yaml", render_contract(session.run.contract).encode())
    manifest = session.run_dir / "bundle" / f"{session.job}-autodl-manifest.json"
    if manifest.exists():
        shutil.copyfile(manifest, results / "manifest.json")
    if not (results / "preflight.json").exists():
        # The checks of an earlier run on the same host, reused: their report is this run's too.
        write_json(results / "preflight.json", session.recorded("preflight_full", any_attempt=True))
    for entry in entries:
        if entry["phase"] == "done":
            name = f"{entry['seq']:03d}-{entry['step']}.json"
            write_json(results / "evidence" / name, entry)
    state = session.state() or ""
    report = render_report(
        results,
        job=session.job,
        run_id=session.run_id,
        state=state,
        entries=entries,
        cost=dict(cost_of(session)),
    )
    write_atomic(results / "report.html", report)
