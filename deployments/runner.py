"""A runner process: registers the deployments of prefect.yaml that are its own, and serves them.

    python -m deployments.runner experiments|reapers [--manifest prefect.yaml]

Environment: CHARTER_HOME; CHARTER_RUNNER_LIMIT, flow runs at once (30). Each flow run is a process
of its own (`python -m prefect.engine`) that imports the flow afresh. Ends on SIGTERM; its flow
processes end with it and are marked Cancelled, which is a detach: hosts go on.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployments import automations
from deployments.environment import POLL_SECONDS, connect
from deployments.manifest import MANIFEST, RUNNERS, Entry, read_manifest
from deployments.starting import ready_file
from experiment.errors import UsageError
from experiment.paths import Home
from remote.agent.files import write_json

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment

DEFAULT_LIMIT = 30


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until told to stop.

    Raises:
        HostUnreachable: no server was started for this home.
        ContractInvalid, NotFound: as `read_manifest`.
        UsageError: a limit that is no positive number.
    """
    parser = argparse.ArgumentParser(prog="python -m deployments.runner")
    parser.add_argument("runner", choices=RUNNERS)
    parser.add_argument("--manifest", type=Path, default=MANIFEST)
    given = parser.parse_args(argv)
    home = Home.find()
    entries = [entry for entry in read_manifest(given.manifest) if entry.runner == given.runner]
    connect(home)
    asyncio.run(_serve(home, given.runner, entries, _limit(os.environ)))


async def _serve(home: Home, name: str, entries: Sequence[Entry], limit: int) -> None:
    from prefect.runner import Runner

    # pause_on_shutdown would leave every deployment paused until the runner is back.
    runner = Runner(name=name, limit=limit, query_seconds=POLL_SECONDS, pause_on_shutdown=False)
    registered = {}
    for entry in entries:
        deployment = deployment_of(entry)
        registered[entry.name] = str(await runner.aadd_deployment(deployment))
    if name == "reapers":
        await automations.ensure()
    write_json(ready_file(home, name), {"pid": os.getpid(), "deployments": registered}, 0o600)
    await runner.start()


def deployment_of(entry: Entry) -> RunnerDeployment:
    """The deployment that an entry of prefect.yaml describes, with a module-path entrypoint.

    Raises:
        ImportError, AttributeError: the entrypoint does not import (Prefect's own `deploy`
            succeeds on those).
    """
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.deployments.runner import RunnerDeployment
    from prefect.events import DeploymentTriggerTypes
    from prefect.schedules import Schedule
    from prefect.types.entrypoint import EntrypointType
    from pydantic import TypeAdapter

    module, _, function = entry.entrypoint.rpartition(".")
    flow = getattr(importlib.import_module(module), function)
    options = dict(entry.options)
    limit = options.get("concurrency_limit")
    triggers = TypeAdapter(list[DeploymentTriggerTypes])
    return RunnerDeployment.from_flow(
        flow,
        entry.name,
        description=options.get("description"),
        tags=options.get("tags"),
        parameters=options.get("parameters"),
        enforce_parameter_schema=options.get("enforce_parameter_schema", True),
        concurrency_limit=ConcurrencyLimitConfig(**limit) if isinstance(limit, dict) else limit,
        schedules=[Schedule(**_schedule(each)) for each in options.get("schedules") or ()],
        triggers=[*triggers.validate_python(options.get("triggers") or [])],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def _schedule(given: Mapping[str, Any]) -> dict[str, Any]:
    seconds = given.get("interval")
    return {**given, "interval": timedelta(seconds=seconds)} if seconds else dict(given)


def _limit(environment: Mapping[str, str]) -> int:
    text = environment.get("CHARTER_RUNNER_LIMIT") or str(DEFAULT_LIMIT)
    if not text.isdecimal() or int(text) < 1:
        raise UsageError("CHARTER_RUNNER_LIMIT", expected="a whole number from 1", found=repr(text))
    return int(text)


if __name__ == "__main__":
    main()
