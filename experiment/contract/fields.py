"""The scalar types of the contract: what each key accepts, and how it is written back.

YAML hands over Python values; each type here takes exactly one meaning of them. A validator
that refuses raises `wanted(expected, hint)`, from which `faults.py` makes the person's line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer
from pydantic_core import PydanticCustomError

from experiment.contract.slug import slugify

MONEY_LIMIT = Decimal(1_000_000)
LONGEST_DURATION = 30 * 24 * 3600
SECONDS = {"s": 1, "m": 60, "h": 3600}
LONGEST_TEXT = 8192

_MONEY = re.compile(r"\+?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?\Z")
_DURATION = re.compile(r"([0-9]{1,9})([smh])\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?\Z")
_CUDA = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def wanted(expected: str, hint: str = "") -> PydanticCustomError:
    """The refusal of one value: what should have been there, and the next move."""
    context = {"expected": expected, "hint": hint}
    return PydanticCustomError("wanted", "expected {expected}", context)


# ── money ────────────────────────────────────────────────────────────────────────────────────


def parse_money(value: object) -> Decimal:
    """A number, or a string of one: finite, 0 to 1,000,000. A bool is no number."""
    refusal = wanted("an amount from 0 to 1000000")
    if isinstance(value, Decimal):
        amount = value
    elif isinstance(value, bool) or not isinstance(value, int | float | str):
        raise refusal
    elif isinstance(value, str):
        if not _MONEY.match(value):
            raise refusal
        amount = Decimal(value)
    else:
        amount = Decimal(str(value))
    if not amount.is_finite() or not 0 <= amount <= MONEY_LIMIT:
        raise refusal
    return amount


def money_text(amount: Decimal) -> str:
    """Plain digits without trailing zeros, so that `2`, `2.00` and `"2"` are one amount."""
    text = format(amount, "f")
    return (text.rstrip("0").rstrip(".") or "0") if "." in text else text


# ── durations ────────────────────────────────────────────────────────────────────────────────


def parse_duration(value: object) -> int:
    """Seconds of `20s`, `15m` or `2h`, at most 30 days. A bare number has no unit: refused."""
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise wanted("a duration like 20s, 15m or 2h")
    seconds = int(match.group(1)) * SECONDS[match.group(2)]
    if seconds > LONGEST_DURATION:
        raise wanted("a duration of at most 720h")
    return seconds


def duration_text(seconds: int) -> str:
    """The one way a duration is written: in the largest unit that divides it."""
    for unit in ("h", "m"):
        if seconds and seconds % SECONDS[unit] == 0:
            return f"{seconds // SECONDS[unit]}{unit}"
    return f"{seconds}s"


# ── other numbers, flags ─────────────────────────────────────────────────────────────────────


def _number(
    low: float, high: float, *, whole: bool = False, above: bool = False
) -> Callable[[object], int | float]:
    """A check for a plain number in the range; `above` leaves `low` itself out."""
    kind = "a whole number" if whole else "a number"
    bounds = f"above {low:g}, at most {high:g}" if above else f"from {low:g} to {high:g}"
    expected = f"{kind} {bounds}"

    def check(value: object) -> int | float:
        if isinstance(value, str) and _MONEY.match(value):
            raise wanted(expected, "remove the quotes")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wanted(expected)
        if not low <= value <= high or (above and value == low):  # NaN and infinities fail too
            raise wanted(expected)
        if value == int(value):
            return int(value)  # 2 and 2.0 are one number, so they are one digest
        if whole:
            raise wanted(expected)
        return value

    return check


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise wanted("true or false")
    return value


# ── text ─────────────────────────────────────────────────────────────────────────────────────


def _text(value: object) -> str:
    if isinstance(value, bool):
        raise wanted("text", f"quote it: '{str(value).lower()}'")
    if isinstance(value, int | float):
        raise wanted("text", "quote it")
    if not isinstance(value, str):
        raise wanted("text")
    if not value.strip():
        raise wanted("text that is not blank")
    if len(value) > LONGEST_TEXT:
        raise wanted(f"text of at most {LONGEST_TEXT} characters")
    if _CONTROL.search(value) or "\ufeff" in value or any("\ud800" <= c <= "\udfff" for c in value):
        raise wanted("text without control characters")
    return value


def _line(value: object) -> str:
    text = _text(value)
    if len(text.splitlines()) > 1 or text != text.strip():
        raise wanted("one line of text without spaces around it")
    return text


def _matching(pattern: re.Pattern[str], expected: str, hint: str = "") -> Callable[[object], str]:
    def check(value: object) -> str:
        if isinstance(value, bool | int | float):
            _text(value)
        if not isinstance(value, str) or not pattern.match(value) or ".." in value:
            raise wanted(expected, hint)
        return value

    return check


def _job(value: object) -> str:
    try:
        return slugify(_line(value))
    except ValueError as error:
        if isinstance(error, PydanticCustomError):
            raise
        raise wanted("a name with at least one letter a-z or digit") from error


def escapes(path: str) -> bool:
    """True when a relative path leaves the folder that it is relative to."""
    depth = 0
    for part in PurePosixPath(path).parts:
        depth += -1 if part == ".." else 0 if part == "." else 1
        if depth < 0:
            return True
    return False


def _inside(value: object) -> str:
    """A relative path that stays inside its folder, in its shortest form."""
    text = _line(value)
    if text.startswith(("/", "~")) or escapes(text) or "\\" in text:
        raise wanted("a path inside the project, relative to it, with /")
    parts: list[str] = []
    for part in PurePosixPath(text).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    if not parts:
        raise wanted("a path of a file inside the project")
    return "/".join(parts)


def _env_value(value: object) -> str:
    # A count like OMP_NUM_THREADS: 2 reads the same either way; a float or a bool does not.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value == "":
        return ""
    return _text(value)


def _store(value: object) -> str:
    text = _line(value)
    if "://" in text and not re.match(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/\S*)?\Z", text):
        raise wanted("a folder, or s3://bucket/prefix")
    return text


Money = Annotated[
    Decimal, BeforeValidator(parse_money), PlainSerializer(money_text, return_type=str)
]
Duration = Annotated[
    int, BeforeValidator(parse_duration), PlainSerializer(duration_text, return_type=str)
]
Gibibytes = Annotated[int | float, BeforeValidator(_number(0, 1_000_000))]
Mebibytes = Annotated[int | float, BeforeValidator(_number(0, 1_000_000))]
Hours = Annotated[int | float, BeforeValidator(_number(0, 24 * 365, above=True))]
GpuCount = Annotated[int, BeforeValidator(_number(1, 64, whole=True))]
Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, BeforeValidator(_text)]
Line = Annotated[str, BeforeValidator(_line)]
Job = Annotated[str, BeforeValidator(_job)]
Inside = Annotated[str, BeforeValidator(_inside)]
EnvValue = Annotated[str, BeforeValidator(_env_value)]
Store = Annotated[str, BeforeValidator(_store)]
Name = Annotated[
    str, BeforeValidator(_matching(_NAME, "a name of letters, digits, '.', '_' and '-'"))
]
HubId = Annotated[str, BeforeValidator(_matching(_HUB_ID, "an id like org/model"))]
CudaVersion = Annotated[str, BeforeValidator(_matching(_CUDA, "a CUDA version like '12.4'"))]
Variable = Annotated[
    str, BeforeValidator(_matching(_VARIABLE, "the name of an environment variable"))
]
