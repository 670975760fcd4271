"""Seconds since boot, counting time asleep: what deadlines are measured by.

Wall time jumps (NTP, a person) and would move a deadline; CLOCK_BOOTTIME does not, and unlike
CLOCK_MONOTONIC it goes on while the machine is suspended.
"""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)

NAME = "boottime" if _BOOTTIME is not None else "monotonic"


def boot_seconds() -> float:
    """Seconds on that clock; only differences within one boot mean anything."""
    if _BOOTTIME is None:
        return time.monotonic()
    return time.clock_gettime(_BOOTTIME)
