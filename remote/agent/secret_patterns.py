"""What a secret looks like: one table, and a scanner that names line and kind, never the value.

The families of `requirements.md` R6 (generic assignments, `sk-`, `hf_`, GitHub, AWS) and other
common kinds. Text is scanned whole, however large, in chunks; binary files are not scanned and
the caller is told so.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, NamedTuple, Set, Tuple

from remote.agent.files import PathLike

_NAMES = ["key", "token", "secret", "passwd", "password"]
# `key` alone is a word of every program: one of these must stand before it.
_NAME = (
    r"(?:(?:(?<=api)|(?<=api[_-])|(?<=access)|(?<=access[_-])|(?<=secret)|(?<=secret[_-]))key"
    r"|token|secret|passwd|password)"
)
_ENV_NAME = (
    r"(?:(?:(?<=API)|(?<=API_)|(?<=ACCESS)|(?<=ACCESS_)|(?<=SECRET_))KEY|TOKEN|SECRET|PASSWORD)"
)

# One row a kind and shape. `starts`: the lower-case texts that the pattern can begin with, found
# by plain search, which is fast; the pattern is tried only there. Patterns are bounded, so that no
# input makes them slow. A group named `value` is checked against PLACEHOLDERS. Plain JSON.
PATTERNS: List[Dict[str, Any]] = [
    {
        "kind": "assigned_secret",
        "starts": _NAMES,
        "pattern": r"(?i)" + _NAME + r"[\"']?[ \t]{0,8}(?::=|=>|[:=])[ \t]{0,8}[\"']"
        r"(?P<value>[A-Za-z0-9_\-+/.~!@#%^*]{16,512})={0,2}[\"']",
    },
    {
        "kind": "assigned_secret",
        "starts": _NAMES,
        # Without quotes it may be code: letters and digits mixed, no call, index or attribute.
        "pattern": r"(?i)" + _NAME + r"[\"']?[ \t]{0,8}[:=][ \t]{0,8}"
        r"(?=[a-z_\-+/~]{0,511}[0-9])(?=[0-9_\-+/~]{0,511}[a-z])"
        r"(?P<value>[a-z0-9_\-+/~]{16,512})={0,2}(?![a-z0-9_\-+/=~(\[.{])",
    },
    {
        "kind": "assigned_secret",
        "starts": _NAMES,
        # A line of an env file: the value is the rest of it, and may be letters only.
        "pattern": r"(?m)"
        + _ENV_NAME
        + r"=(?P<value>[A-Za-z0-9_\-+/.~]{16,512})={0,2}[ \t\r]{0,8}$",
    },
    {
        "kind": "sk_key",
        "starts": ["sk-"],
        "pattern": r"(?<![A-Za-z0-9_-])sk-(?:[A-Za-z0-9]{16,256}"
        r"|(?:proj|ant|or|svcacct|admin|live|test)-[A-Za-z0-9_-]{16,256}"
        r"|(?=[a-z0-9_-]{0,255}[A-Z])(?=[A-Za-z_-]{0,255}[0-9])[A-Za-z0-9_-]{20,256})",
    },
    {
        "kind": "huggingface_token",
        "starts": ["hf_"],
        "pattern": r"(?<![A-Za-z0-9_])hf_[A-Za-z0-9]{16,256}",
    },
    {
        "kind": "github_token",
        "starts": ["ghp_", "gho_", "ghu_", "ghs_", "ghr_"],
        "pattern": r"(?<![A-Za-z0-9_])gh[pousr]_[A-Za-z0-9]{16,256}",
    },
    {
        "kind": "github_token",
        "starts": ["github_pat_"],
        "pattern": r"(?<![A-Za-z0-9_])github_pat_[A-Za-z0-9_]{20,256}",
    },
    {
        "kind": "aws_access_key",
        "starts": ["akia", "asia"],
        "pattern": r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
    },
    {
        "kind": "private_key",
        "starts": ["-----begin "],
        "pattern": r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----",
    },
    {
        "kind": "jupyter_token",
        "starts": ["?token=", "&token="],
        "pattern": r"(?i)[?&]token=[0-9a-f]{32,128}(?![0-9a-f])",
    },
    {
        "kind": "json_web_token",
        "starts": ["eyj"],
        "pattern": r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,1024}\.eyJ[A-Za-z0-9_-]{8,1024}"
        r"\.[A-Za-z0-9_-]{8,}",
    },
    {
        "kind": "bearer_token",
        "starts": ["bearer"],
        "pattern": r"(?i)(?<![a-z])bearer[ \t]{1,4}(?=[a-z._~+/=-]{0,255}[0-9])"
        r"(?P<value>[a-z0-9._~+/=-]{20,512})",
    },
    {
        "kind": "password_in_url",
        "starts": ["://"],
        "pattern": r"://[A-Za-z0-9_.%+-]{1,64}:(?P<value>[^\s/:@\"'<>{}$]{4,128})@[A-Za-z0-9]",
    },
    {
        "kind": "modelscope_token",
        "starts": ["ms-"],
        "pattern": r"(?<![A-Za-z0-9])ms-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}",
    },
    {
        "kind": "aliyun_access_key",
        "starts": ["ltai"],
        "pattern": r"(?<![A-Za-z0-9])LTAI[A-Za-z0-9]{12,26}(?![A-Za-z0-9])",
    },
    {
        "kind": "google_api_key",
        "starts": ["aiza"],
        "pattern": r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{35}",
    },
    {
        "kind": "slack_token",
        "starts": ["xox"],
        "pattern": r"(?<![A-Za-z0-9])xox[abeoprs]-[A-Za-z0-9-]{10,256}",
    },
]

# Values that only show where a secret would stand: whole values, never parts.
PLACEHOLDERS = (
    r"(?i:your|my|the|some|insert|enter|put|replace|add)[_-].*"
    r"|(?:x+|\*+|\.+|-+|_+|0+|#+|=+)"
    r"|(?i:.*(?:redacted|placeholder|changeme|change-me|change_me).*)"
    r"|/[^/]+/.*|\./.*|~/.*"
    r"|(?i:pass|password|passwd|secret|token|user)"
)
# `pad_token: "…"` and its kin are words of a tokenizer.
TOKENIZER_WORDS = (
    r"(?i)(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio|special|stop|start|end|first|last|next"
    r"|new|think|tool|prefix|suffix|middle|added|word|chat|boi|eoi)_?token$"
)

CHUNK_BYTES = 4 << 20
# More than any pattern needs to be recognised, where one line is longer than a chunk.
OVERLAP_BYTES = 8 << 10
SNIFF_BYTES = 8 << 10

Hit = Tuple[int, str]


class Scan(NamedTuple):
    """What a file's scan found: hits as (line from 1, kind), or why it was not scanned."""

    hits: List[Hit]
    skipped: str | None


class _Rule(NamedTuple):
    kind: str
    starts: Tuple[bytes, ...]
    pattern: re.Pattern[bytes]


_PLACEHOLDER = re.compile(PLACEHOLDERS.encode("ascii"))
_TOKENIZER = re.compile(TOKENIZER_WORDS.encode("ascii"))
_RULES = [
    _Rule(
        str(row["kind"]),
        tuple(str(start).encode("ascii") for start in row["starts"]),
        re.compile(str(row["pattern"]).encode("ascii")),
    )
    for row in PATTERNS
]


def kinds() -> list[str]:
    """The names of all kinds, sorted."""
    return sorted({rule.kind for rule in _RULES})


def scan_bytes(data: bytes) -> list[Hit]:
    """Where something in the data looks like a secret: (line from 1, kind), in order."""
    scanner = Scanner()
    scanner.feed(data)
    return scanner.finish().hits


def scan_text(text: str) -> list[Hit]:
    """`scan_bytes` of a text."""
    return scan_bytes(text.encode("utf-8", "surrogatepass"))


def scan_file(path: PathLike) -> Scan:
    """Scan a file of any size in chunks; a binary one is not scanned, and says so.

    Raises:
        OSError: the file can't be read.
    """
    scanner = Scanner()
    with open(path, "rb") as handle:
        while True:
            chunk = handle.read(CHUNK_BYTES)
            if not chunk:
                return scanner.finish()
            scanner.feed(chunk)
            if scanner.skipped:
                return scanner.finish()


class Scanner:
    """Scans data that comes in pieces, so that hashing and scanning share one pass."""

    def __init__(self) -> None:
        self.skipped: str | None = None
        self._hits: Set[Hit] = set()
        self._rest = b""
        self._line = 1
        self._begun = False

    def feed(self, data: bytes) -> None:
        """Take the next piece, of any size."""
        if self.skipped or not data:
            return
        self._rest += data
        if not self._begun:
            if len(self._rest) < SNIFF_BYTES:
                return
            self._sniff()
        if len(self._rest) >= CHUNK_BYTES:
            self._scan_whole_lines()

    def finish(self) -> Scan:
        """Scan what is left and give the result."""
        if not self._begun:
            self._sniff()
        if self.skipped is None:
            self._scan(self._rest)
        self._rest = b""
        return Scan(sorted(self._hits), self.skipped)

    def _sniff(self) -> None:
        self._begun = True
        if b"\0" in self._rest[:SNIFF_BYTES]:
            self.skipped = "binary"
            self._rest = b""

    def _scan_whole_lines(self) -> None:
        end = self._rest.rfind(b"\n") + 1
        if end:
            done, self._rest = self._rest[:end], self._rest[end:]
            self._scan(done)
            self._line += done.count(b"\n")
            return
        self._scan(self._rest)
        self._rest = self._rest[-OVERLAP_BYTES:]

    def _scan(self, data: bytes) -> None:
        lowered = data.lower()
        places: Dict[Tuple[bytes, ...], List[int]] = {}
        found = []
        for rule in _RULES:
            if rule.starts not in places:
                places[rule.starts] = list(_positions(lowered, rule.starts))
            for position in places[rule.starts]:
                match = rule.pattern.match(data, position)
                if match and not _harmless(data, match):
                    found.append((position, rule.kind))
        line, counted = self._line, 0
        for position, kind in sorted(found):
            line += data.count(b"\n", counted, position)
            counted = position
            self._hits.add((line, kind))


def _positions(lowered: bytes, starts: Tuple[bytes, ...]) -> Iterator[int]:
    for start in starts:
        position = lowered.find(start)
        while position >= 0:
            yield position
            position = lowered.find(start, position + 1)


def _harmless(data: bytes, match: re.Match[bytes]) -> bool:
    if "value" not in match.re.groupindex:
        return False
    value = match.group("value")
    if _PLACEHOLDER.fullmatch(value):
        return True
    name = data[max(0, match.start() - 16) : match.start() + len(b"token")]
    return bool(_TOKENIZER.search(name))
