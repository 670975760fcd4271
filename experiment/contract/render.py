"""A contract as YAML for people: block style, the reason for each guess in a comment.

Written so that `strict_yaml` reads back exactly the same values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from experiment.contract.inspect import Proposal

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./@+-]*(?: [A-Za-z0-9_./@+-]+)*\Z")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"})
HEADER = """\
# Proposed by `charter init`. Every guess says why: check them, then `charter plan` this file.
"""


def render(proposal: Proposal) -> str:
    """The proposal as commented YAML."""
    reasons = {guess["key"]: guess["why"] for guess in proposal.guesses}
    noted = [
        f"# {guess['key']}: {_shown(guess['value'])}: {_comment(guess['why'])}"
        for guess in proposal.guesses
        if not _present(proposal.contract, guess["key"])
    ]
    return "\n".join([HEADER.rstrip(), *noted, *_mapping(proposal.contract, reasons, "", 0), ""])


def render_contract(contract: Mapping[str, Any]) -> str:
    """A canonical contract as plain YAML, for the results folder."""
    return "\n".join([*_mapping(contract, {}, "", 0), ""])


def _mapping(
    value: Mapping[str, Any], reasons: Mapping[str, str], above: str, indent: int
) -> list[str]:
    lines: list[str] = []
    for name, item in value.items():
        key = f"{above}.{name}" if above else name
        why = f"  # {_comment(reasons[key])}" if key in reasons else ""
        pad, label = "  " * indent, _scalar(name)
        if isinstance(item, Mapping) and item:
            lines.append(f"{pad}{label}:{why}")
            lines += _mapping(item, reasons, key, indent + 1)
        elif isinstance(item, list | tuple) and any(isinstance(one, Mapping) for one in item):
            lines.append(f"{pad}{label}:{why}")
            lines += _entries(item, reasons, key, indent + 1)
        else:
            lines.append(f"{pad}{label}: {_flow(item)}{why}")
        if indent == 0:
            lines.append("")
    return lines[:-1] if lines and not lines[-1] else lines


def _entries(items: Any, reasons: Mapping[str, str], key: str, indent: int) -> list[str]:
    lines = []
    for index, item in enumerate(items):
        why = reasons.get(f"{key}.{index}")
        lines.append("  " * indent + f"- {_flow(item)}" + (f"  # {_comment(why)}" if why else ""))
    return lines


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_scalar(name)}: {_flow(item)}" for name, item in value.items())
        return "{" + inner + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return json.dumps(value)
    text = str(value)
    if _PLAIN.match(text) and text.lower() not in _WORDS:
        return text
    # JSON's escapes are YAML's, except for characters beyond the first plane: kept as they are.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def _comment(text: str) -> str:
    return " ".join(re.sub(r"[^\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd]", " ", text).split())


def _shown(value: Any) -> str:
    return _comment(_flow(value))


def _present(contract: Mapping[str, Any], key: str) -> bool:
    place: Any = contract
    for part in key.split("."):
        if isinstance(place, Mapping) and part in place:
            place = place[part]
        elif isinstance(place, list | tuple) and part.isdigit() and int(part) < len(place):
            place = place[int(part)]
        else:
            return False
    return True
