"""Who rents machines: what a provider can be asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, Protocol

from experiment.hosts.base import Endpoint

__all__ = [
    "Capabilities",
    "CreateRequest",
    "Endpoint",
    "Instance",
    "InstanceState",
    "Provider",
    "Segment",
]

InstanceState = Literal["starting", "running", "stopping", "off", "released", "lost", "unknown"]
# From power-on to the provider's confirmation that it is off; None while the meter runs.
Segment = tuple[datetime, datetime | None]


@dataclass(frozen=True)
class Capabilities:
    """In what providers differ, where callers have to care.

    Args:
        creates: False where a person starts the machine and hands it over (`attach`).
        confirms_stop: False where nobody but the machine itself can be asked whether it is off.
        saves_images: whether the system disk can be kept as an image.
        releases: whether the instance can be given away, with its disk.
        stop_keeps_disk: whether the data root is still there after a stop.
        stopped_rate: money per hour of an instance that is off and not released.
        least_seconds: what a start costs at least, in seconds of its rate.
    """

    creates: bool = True
    confirms_stop: bool = True
    saves_images: bool = False
    releases: bool = True
    stop_keeps_disk: bool = True
    stopped_rate: Decimal = Decimal(0)
    least_seconds: int = 0


@dataclass(frozen=True)
class CreateRequest:
    """What is asked for.

    Args:
        name: unique at the provider, written down as the intent before the call, so that an
            unclear answer is settled by `find(name)` and never by a second instance.
        rate: the approved price per hour; the provider's answer names the real one.
    """

    name: str
    gpu_name: str
    gpu_count: int
    currency: str
    rate: Decimal
    image: str | None = None
    region: str | None = None


@dataclass(frozen=True)
class Instance:
    """What a provider says about one instance, at the moment it was asked.

    Args:
        state: `unknown` counts as billing. `lost`: the provider has no record of it.
        rate: price per hour in `currency`, for the whole instance.
        gpu: `{name, count}` and what else the provider tells.
        endpoint: where it answers; None unless running. It may change with every power-on.
        stop_argv: a command that, run on the host, asks the provider to power it off.
        involves_ssh: False where the machine is used without any SSH.
    """

    id: str
    name: str
    state: InstanceState
    rate: Decimal
    currency: str
    gpu: dict[str, Any]
    endpoint: Endpoint | None
    data_root: str
    started_at: datetime | None
    stopped_at: datetime | None
    segments: tuple[Segment, ...] = ()
    stop_argv: tuple[str, ...] = ()
    involves_ssh: bool = True
    notes: tuple[str, ...] = field(default=())


class Provider(Protocol):
    """Rents machines. Names of instances are unique; nothing is retried in here."""

    @property
    def name(self) -> str:
        """`local`, `attach`, `autodl`."""

    @property
    def capabilities(self) -> Capabilities:
        """In what it differs from the others."""

    def create(self, request: CreateRequest) -> Instance:
        """Rent and power on; the meter runs from here. An instance of that name is returned as
        it is, never a second one made."""

    def find(self, name: str) -> Instance | None:
        """The instance of that name, or None: how an unclear `create` is settled."""

    def status(self, instance_id: str) -> Instance:
        """What is true now; `lost` when there is no record of it."""

    def list(self) -> list[Instance]:
        """Every instance that exists, running or off."""

    def power_on(self, instance_id: str) -> None:
        """Ask for power; `running` is what `status` says later. Nothing to do when it is on.

        Raises:
            NotFound: no such instance.
            Busy: it is still stopping.
        """

    def power_off(self, instance_id: str) -> None:
        """Ask for the end of the meter and return at once; `off` is what `status` says later."""

    def release(self, instance_id: str) -> None:
        """Give the instance and its disk away, for good. One already released is no error.

        Raises:
            Busy: it is not off.
        """
