"""`agent.pyz stream`: the agent kept running on one channel, a line for a request, a line back.

    {"step", "request"}  ->  {"exit_code", "response", "stderr"}
    an empty line        ->  an empty line

Starting Python and reading the archive costs far more than most steps do. Each step still runs in
a process of its own, forked from this one: nothing that it changes or leaks is there for the next,
and when the channel is cut it goes on to its end and records its answer, as it would by itself.

`response` is null where the step died without one; `stderr` is what it said. The channel's end ends
the program.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from typing import Any, Dict, List

from remote.agent.errors import usage
from remote.agent.files import canonical_json
from remote.agent.perform import EXIT_UNKNOWN, answer
from remote.agent.steps import STEPS

READ_BYTES = 1 << 20
# Gives its data on stdout, which is the channel here: to be run by itself.
ELSEWHERE = ("archive",)


def main(arguments: List[str]) -> int:
    """Answer until stdin ends."""
    del arguments
    while True:
        line = sys.stdin.buffer.readline()
        if not line.endswith(b"\n"):
            return 0
        sys.stdout.buffer.write((_answer(line) if line.strip() else b"") + b"\n")
        sys.stdout.buffer.flush()


def _answer(line: bytes) -> bytes:
    asked = json.loads(line.decode("utf-8"))
    step = asked["step"]
    if step not in STEPS or step in ELSEWHERE:
        error = usage(f"step: expected one that answers in a line, found {step!r}")
        response = {"ok": False, "request_id": None, "error": error.as_json()}
        return canonical_json({"exit_code": 64, "response": response, "stderr": ""})
    try:
        # Here and not in the child: read once, it is there for every later one.
        importlib.import_module(STEPS[step].module)
    except Exception as error:  # noqa: BLE001 - a damaged archive is told, as any unknown failure
        # No traceback: its lines would be read from that archive.
        said = f"{STEPS[step].module} can't be read: {type(error).__name__}: {error}"
        return canonical_json({"exit_code": EXIT_UNKNOWN, "response": None, "stderr": said})
    return _in_a_child(step, asked["request"])


def _in_a_child(step: str, request: Any) -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_the_child(step, request, writing)
    os.close(writing)
    told = b""
    # To the line's end, not the pipe's: what a step leaves running may hold the pipe open.
    while not told.endswith(b"\n"):
        chunk = os.read(reading, READ_BYTES)
        if not chunk:
            break
        told += chunk
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if told.endswith(b"\n"):
        return told[:-1]
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    said = f"ended without a word, status {code}"
    return canonical_json({"exit_code": code, "response": None, "stderr": said})


def _be_the_child(step: str, request: Any, writing: int) -> None:
    """Do the step away from the channel, tell the parent, and end; never returns."""
    code = EXIT_UNKNOWN
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        sys.stderr = io.StringIO()
        code, response = answer(step, request)
        told: Dict[str, Any] = {"exit_code": code, "response": response}
        told["stderr"] = sys.stderr.getvalue()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(canonical_json(told) + b"\n")
    finally:
        # Not `sys.exit`: the parent's buffers and exit handlers are not this process's.
        os._exit(code)
