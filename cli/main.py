"""The `charter` command: reads the global options, hands over to one command, prints its fault.

Modules of commands import at their top only what is quick (no Prefect, no SQLAlchemy): `--help`
and completion must answer at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer._click.exceptions import ClickException  # typer 0.29 exports no public name for it

from cli import act, look, money, plan, prove, run, server
from cli.output import Output, Session
from experiment.errors import CharterError, Interrupted, UsageError
from experiment.paths import Home

COMMANDS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("up", server.up),
    ("down", server.down),
    ("doctor", server.doctor),
    ("init", plan.init),
    ("plan", plan.plan),
    ("bundle", plan.bundle),
    ("run", run.run),
    ("prepare", run.prepare),
    ("approve", run.approve),
    ("refuse", run.refuse),
    ("list", look.list_),
    ("status", look.status),
    ("logs", look.logs),
    ("stop", act.stop),
    ("collect", act.collect),
    ("verify", prove.verify),
    ("shutdown", act.shutdown),
    ("rentals", money.rentals),
)

INTERNAL_FAULT = 70

_INTERRUPTED = Interrupted("interrupted", hint="what runs on a host goes on there")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after `charter`; None means this process's own.

    Returns:
        the exit code of the interface page; 70 for a fault in Charter itself.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    output = Output(as_json="--json" in _before_dashes(words))
    home = Home.find()
    try:
        given, words = _take_globals(words)
        home = Home.find(given)
        # Nothing is written outside the home, matplotlib's font list included.
        os.environ.setdefault("MPLCONFIGDIR", str(home.cache / "matplotlib"))
        answer = build()(
            words, prog_name="charter", standalone_mode=False, obj=Session(home, output)
        )
    except CharterError as error:
        return output.failure(error)
    except ClickException as error:
        return output.failure(_usage(error))
    except typer.Abort:
        return output.failure(_INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the outermost frame: recorded whole, said in a line
        return output.failure(_internal(error, home))
    if answer == Interrupted.exit_code:  # typer's form of a KeyboardInterrupt
        return output.failure(_INTERRUPTED)
    return answer if isinstance(answer, int) else 0


def build() -> typer.Typer:
    """Every command, registered under its name."""
    app = typer.Typer(
        help="Take an experiment from a written contract to verified results, and stop the meter.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog="--home and --json may also stand after the command.",
    )
    app.callback(invoke_without_command=True)(_globals)
    for name, command in COMMANDS:
        app.command(name)(command)
    return app


def _globals(
    ctx: typer.Context,
    _home: Annotated[
        str, typer.Option("--home", help="Where Charter keeps everything [$CHARTER_HOME].")
    ] = "",
    _json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    # --home and --json are read by `_take_globals`; here they are only for the help text.
    session: Session = ctx.obj
    if show_version:
        number = version("charter-experiments")
        session.output.result({"version": number}, f"charter {number}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        if session.output.as_json:
            raise UsageError("no command given", hint="see `charter --help`")
        typer.echo(ctx.get_help())


def _take_globals(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Pick `--json` and `--home DIR` out of the words, wherever they stand before a `--`.

    Returns:
        the folder given last, and the words that remain.

    Raises:
        UsageError: `--home` without a folder.
    """
    mine = _before_dashes(words)
    home: str | None = None
    rest: list[str] = []
    reading = iter(mine)
    for word in reading:
        if word == "--json":
            continue
        if word == "--home":
            home = next(reading, "")
        elif word.startswith("--home="):
            home = word.partition("=")[2]
        else:
            rest.append(word)
            continue
        if not home:
            raise UsageError("option without a value", "--home", expected="a folder")
    return home, [*rest, *words[len(mine) :]]


def _before_dashes(words: Sequence[str]) -> list[str]:
    """The words up to a bare `--`: what follows belongs to somebody else."""
    return list(words[: words.index("--")] if "--" in words else words)


def _usage(error: ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "charter"
    return UsageError(error.format_message().rstrip("."), hint=f"see `{command} --help`")


def _internal(error: Exception, home: Home) -> CharterError:
    """A fault of ours: the traceback into a file, a line for the person."""
    home.logs.mkdir(parents=True, exist_ok=True)
    file = home.logs / f"fault-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}.txt"
    file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return CharterError(
        "a fault in Charter itself",
        type(error).__name__,
        found=" ".join(str(error).split())[:200] or "no message",
        hint=f"its traceback is in {file}; please report it",
        exit_code=INTERNAL_FAULT,
    )
