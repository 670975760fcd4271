"""Automations that Prefect's server runs for us, made anew when they are missing.

A flow run whose process is gone stays Running for ever; its missing heartbeats give it away. It is
then called Crashed, which starts the sweep. That is a verdict on the flow run, never on a training.
"""

from __future__ import annotations

from datetime import timedelta

from deployments.environment import HEARTBEAT_SECONDS

ZOMBIES = "charter: crash flow runs without a heartbeat"
_MISSED = 3


async def ensure() -> None:
    """Make the automation, unless one of its name is there."""
    from prefect.automations import Automation
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    try:
        await Automation.aread(name=ZOMBIES)
    except ValueError:
        # How Prefect says that there is none of that name.
        automation = Automation(
            name=ZOMBIES,
            trigger=EventTrigger(
                after={"prefect.flow-run.heartbeat"},
                expect={
                    "prefect.flow-run.heartbeat",
                    "prefect.flow-run.Completed",
                    "prefect.flow-run.Failed",
                    "prefect.flow-run.Cancelled",
                    "prefect.flow-run.Crashed",
                    # At the gate there is no process, and none is missed.
                    "prefect.flow-run.Suspended",
                },
                match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
                for_each={"prefect.resource.id"},
                posture=Posture.Proactive,
                threshold=1,
                within=timedelta(seconds=_MISSED * HEARTBEAT_SECONDS),
            ),
            actions=[
                ChangeFlowRunState(
                    state=StateType.CRASHED,
                    message="no heartbeat: its process is gone; what it watched goes on",
                )
            ],
        )
        await automation.acreate()
