"""docs/reference/cli.md, made from the commands themselves.

python -m cli.reference > docs/reference/cli.md      (`make docs`)
"""

from __future__ import annotations

from typing import Any

from typer.main import get_command

from cli.main import build

HEAD = """# The `charter` command

<!-- Made by `make docs` from the commands themselves; a test fails when it is not up to date. -->

`charter [--home DIR] [--json] COMMAND`. Both options may also stand after the command. Exit codes:
[exit-codes.md](exit-codes.md). RUN is a run id or a job name (its newest run).
"""


def page() -> str:
    """The whole page in Markdown."""
    commands: dict[str, Any] = get_command(build()).commands  # type: ignore[attr-defined]
    return "\n".join([HEAD, *(_section(name, command) for name, command in commands.items())])


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    words = " ".join(_placeholder(each) for each in arguments)
    lines = [f"## {name}", "", f"`charter {name}{' ' if words else ''}{words}`", ""]
    lines += [_paragraphs(command.help), ""]
    rows = [f"| `{_names(each)}` | {each.help or ''} |" for each in options if not each.hidden]
    if rows:
        lines += ["| option | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _names(option: Any) -> str:
    value = "" if option.is_flag else f" {option.name.upper()}"
    return ", ".join(option.opts) + value


def _paragraphs(text: str | None) -> str:
    parts = (text or "").split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)


def _placeholder(argument: Any) -> str:
    word = str(argument.name).upper()
    return word if argument.required else f"[{word}]"


if __name__ == "__main__":
    print(page(), end="")
