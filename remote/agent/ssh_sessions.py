"""Whether a person is logged in to the host with a terminal."""

from __future__ import annotations

import os
import re
from typing import Mapping

from remote.agent.layout import Layout
from remote.agent.process import (
    DATA_ROOT_TAG,
    DEAD_STATES,
    INSTANCE_TAG,
    all_facts,
    command_line,
    environment,
)

# OpenSSH names its process after the login: `sshd: root@pts/0`, since 9.8 `sshd-session: …`.
# Logins without a terminal, ours among them, are `root@notty`.
LOGIN = re.compile(r"sshd(?:-session)?: \S+@(?:pts/|tty)[0-9]")


def interactive(layout: Layout, scope: str) -> bool:
    """Whether an SSH session with a terminal is open.

    Args:
        scope: `any` counts every login on the machine; `tagged` only processes with a terminal
            whose environment names this data root, or the instance that this process belongs to.
    """
    for row in all_facts():
        if row.state in DEAD_STATES:
            continue
        if scope == "any" and LOGIN.match(command_line(row.pid)):
            return True
        if not row.tty:
            continue
        held = environment(row.pid)
        if "SSH_TTY" in held and (scope == "any" or _ours(held, layout)):
            return True
    return False


def default_scope() -> str:
    """`tagged` on a host that is one of several on its machine, else `any`."""
    return "tagged" if os.environ.get(INSTANCE_TAG) else "any"


def _ours(held: Mapping[str, str], layout: Layout) -> bool:
    instance = os.environ.get(INSTANCE_TAG)
    if instance and held.get(INSTANCE_TAG) == instance:
        return True
    return held.get(DATA_ROOT_TAG) == os.path.realpath(str(layout.data_root))
