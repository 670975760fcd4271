"""The host's program: `python3 -I agent.pyz STEP REQUEST.json RESPONSE.json`.

Reads one request, does one step, writes one answer, atomically. No stdin. stdout is empty, except
for `archive`, which streams the archive there; stderr is for people.

Exit codes: 0 done, the answer is in RESPONSE.json · the error's own code, likewise with an answer
(`"ok": false`) · 64 wrong arguments · 70 an unknown failure: a traceback on stderr and no answer ·
69 a Python older than 3.8.

A request that carries secrets is removed as soon as it is read. `agent.pyz stream` answers many
requests on one channel instead, see there.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

from remote.agent.answer import error_answer
from remote.agent.errors import AgentError, usage
from remote.agent.files import read_json, write_json
from remote.agent.perform import EXIT_UNKNOWN, answer
from remote.agent.steps import PROGRAMS, STEPS

EXIT_USAGE = 64


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in PROGRAMS:
        program = importlib.import_module(PROGRAMS[given[0]])
        return int(program.main(given[1:]))
    if len(given) != 3 or given[0] not in STEPS:
        sys.stderr.write(
            "error: usage: agent.pyz STEP REQUEST.json RESPONSE.json, STEP one of "
            f"{' '.join(sorted(STEPS))}; found {' '.join(given)!r}\n"
        )
        return EXIT_USAGE
    step, request_path, response_path = given
    try:
        request = _read_request(request_path)
    except AgentError as error:
        sys.stderr.write(f"error: {error.message}; {error.hint}\n")
        write_json(response_path, error_answer(None, error))
        return error.exit_code
    code, response = answer(step, request)
    try:
        if response is not None:
            write_json(response_path, response)
    except OSError:
        traceback.print_exc()
        return EXIT_UNKNOWN
    return code


def _read_request(path: str) -> Any:
    try:
        request = read_json(path)
    except FileNotFoundError:
        raise usage(f"request file is missing: {path!r}", "write the request first") from None
    except ValueError as error:
        raise usage(f"request file is damaged: {error}", "write the request again") from None
    if isinstance(request, dict) and request.get("secrets"):
        os.unlink(path)
    return request


if __name__ == "__main__":
    sys.exit(main())
