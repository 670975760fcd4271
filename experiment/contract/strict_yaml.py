"""YAML as a contract needs it: plain data, one meaning, bounded work.

Differences from PyYAML's safe loader, each because the usual behaviour loses or changes what a
person wrote: duplicate keys are faults; only `true`/`false` are booleans (`no` is text), dates
and `12:30` are text, `012` and `0x10` are text, `1e3` is a number; no tags, no merge keys;
aliases only within a budget of nodes; one document.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

MAX_BYTES = 64 * 1024
MAX_DEPTH = 32
MAX_NODES = 20_000

_PLAIN_TAGS = {
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")
}


class YamlFault(ValueError):
    """What is wrong, and in which line (from 1; 0 when unknown)."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class _CoreLoader(yaml.SafeLoader):
    """PyYAML's scanner and composer with the core schema's plain scalars."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own class attribute)


def _resolve(name: str, pattern: str, first: str) -> None:
    _CoreLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{name}", re.compile(f"^(?:{pattern})$"), list(first)
    )


_resolve("null", r"null|Null|NULL|~|", "nN~\0")
_resolve("bool", r"true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789")
_resolve(
    "float",
    r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "-+0123456789.",
)
# PyYAML looks an empty plain scalar up under "".
_CoreLoader.yaml_implicit_resolvers[""] = _CoreLoader.yaml_implicit_resolvers.pop("\0")


def parse(data: bytes) -> tuple[Any, list[YamlFault]]:
    """The value of one YAML document, and the faults that still allow reading on.

    Returns:
        plain dicts, lists, strings, ints, floats, bools and None; and the duplicate keys.

    Raises:
        YamlFault: no readable document at all.
    """
    if len(data) > MAX_BYTES:
        raise YamlFault(f"expected at most {MAX_BYTES} bytes, found {len(data)}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise YamlFault("expected UTF-8 text", line) from None
    return parse_text(text)


def parse_text(text: str) -> tuple[Any, list[YamlFault]]:
    """As `parse`, for text (the value of a `--set`)."""
    try:
        loader = _CoreLoader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = _one_line(error.problem or "not YAML")
        if "another document" in problem:
            problem = "expected a single document"
        raise YamlFault(problem, mark.line + 1 if mark else 0) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlFault("expected text without control characters", line) from None
    except RecursionError:
        raise YamlFault(f"expected at most {MAX_DEPTH} levels of nesting") from None
    if node is None:
        return None, []
    builder = _Builder()
    return builder.value(node, 0), builder.faults


def _one_line(problem: str) -> str:
    # The scanner's messages may quote the document; a contract's text stays out of errors.
    return re.sub(r"\s+", " ", re.sub(r"'[^']{13,}'", "'…'", problem))


class _Builder:
    """Values out of nodes; counts the work, so that aliases can't multiply it."""

    def __init__(self) -> None:
        self.nodes = 0
        self.faults: list[YamlFault] = []

    def value(self, node: yaml.Node, depth: int) -> Any:
        line = node.start_mark.line + 1
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise YamlFault(f"expected at most {MAX_NODES} values (aliases counted out)", line)
        if depth > MAX_DEPTH:
            raise YamlFault(f"expected at most {MAX_DEPTH} levels of nesting", line)
        if node.tag not in _PLAIN_TAGS:
            raise YamlFault(f"expected plain data, found the tag {node.tag[:60]!r}", line)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, depth + 1) for item in node.value]
        return _scalar(node.tag.rsplit(":", 1)[1], str(node.value), line)

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise YamlFault("expected a key that is text", line)
            # A key is text whatever it looks like: `1:` is the key "1".
            key = str(key_node.value)
            value = self.value(value_node, depth + 1)
            if key in mapping:
                self.faults.append(YamlFault(f"duplicate key {key[:60]!r}", line))
                continue
            mapping[key] = value
        return mapping


def _scalar(kind: str, text: str, line: int) -> Any:
    try:
        if kind == "null":
            return None
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    except (ValueError, KeyError):
        raise YamlFault(f"expected a value of the kind {kind}", line) from None
    return text
