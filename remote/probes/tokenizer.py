"""Does the tokenizer load offline, and does a conversation survive its chat template?

    python tokenizer.py request.json response.json

reads   {"model_path": "/data/models/base", "chat_template": true?}
        or "paths": [...]; with neither, $MODEL_PATH
writes  {"probe", "status", "seconds", "checks": [{name status found expected fix}],
        "packages": {name: version}}, under a temporary name, then renamed
exit    0 PASS or SKIP · 2 FAIL · 64 usage · anything else is a traceback
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

TEXT = "What is 12 + 30? Answer: 42."
FETCH_AGAIN = "run the snapshot step again, with the tokenizer's files"


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """For each folder: it loads, text comes back, ids fit the model, the chat template works."""
    paths = request.get("paths") or [request.get("model_path") or os.environ.get("MODEL_PATH", "")]
    checks: list[dict[str, Any]] = []
    for path in map(Path, filter(None, paths)):
        checks += check_tokenizer(path, bool(request.get("chat_template", True)))
    if not checks:
        return {"checks": [check("tokenizer", "SKIP", "no model", "a model")], "packages": {}}
    names = ("transformers", "tokenizers")
    return {"checks": checks, "packages": {one: importlib.metadata.version(one) for one in names}}


def check_tokenizer(path: Path, chat: bool) -> list[dict[str, Any]]:
    title = f"{path.name} tokenizer"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # noqa: BLE001 - a broken file raises anything; it is the finding
        text = f"{type(error).__name__}: {error}"[:300]
        return [check(title, "FAIL", text, "loads offline", FETCH_AGAIN)]
    said = f"{type(tokenizer).__name__}, {len(tokenizer)} tokens"
    checks = [check(title, "PASS", said, "loads offline"), check_size(path, tokenizer)]
    back = tokenizer.decode(tokenizer(TEXT)["input_ids"], skip_special_tokens=True)
    same = " ".join(back.split()) == TEXT
    fix = "" if same else FETCH_AGAIN
    checks.append(check(f"{title} round trip", "PASS" if same else "FAIL", back, TEXT, fix))
    if chat:
        checks.append(check_chat(title, tokenizer))
    return checks


def check_size(path: Path, tokenizer: Any) -> dict[str, Any]:
    """No id may lie outside the model's embedding."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    rows = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    highest = max(tokenizer.get_vocab().values())
    title = f"{path.name} vocabulary"
    if rows is None:
        return check(title, "SKIP", "config.json has no vocab_size", "ids below vocab_size")
    good = highest < rows
    fix = "" if good else "tokenizer and weights are of two models"
    return check(title, "PASS" if good else "FAIL", f"highest id {highest}", f"below {rows}", fix)


def check_chat(title: str, tokenizer: Any) -> dict[str, Any]:
    """The user's words are found again in what the template made of them."""
    title, expected = f"{title} chat template", "keeps the user's words"
    try:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": TEXT}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        back = tokenizer.decode(ids)
    except Exception as error:  # noqa: BLE001 - templates are programs; they raise anything
        text = f"{type(error).__name__}: {error}"[:300]
        return check(title, "FAIL", text, expected, "give the tokenizer a chat_template")
    if TEXT not in " ".join(back.split()):
        return check(title, "FAIL", back[:300], expected, "mend the chat_template")
    return check(title, "PASS", f"{len(ids)} tokens", expected)


# --- the same end in every probe ----------------------------------------------------------------


def check(name: str, status: str, found: object, expected: object, fix: str = "") -> dict[str, Any]:
    """One outcome; `fix` is the next move and only given with FAIL."""
    return {"name": name, "status": status, "found": found, "expected": expected, "fix": fix}


def main(argv: list[str]) -> int:
    if len(argv) != 3:
        print(f"usage: python {argv[0]} REQUEST.json RESPONSE.json", file=sys.stderr)
        return 64
    here, began = Path(__file__).resolve(), time.monotonic()
    # This folder's names (cuda, tokenizer) must not stand in for anybody's packages.
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here.parent]
    # Nothing is compiled here, and importing the compiler costs two seconds.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    answer = probe(json.loads(Path(argv[1]).read_text(encoding="utf-8")))
    states = [one["status"] for one in answer["checks"]]
    status = "FAIL" if "FAIL" in states else "PASS" if "PASS" in states else "SKIP"
    seconds = round(time.monotonic() - began, 3)
    answer = {
        "schema_version": 1,
        "probe": here.stem,
        "status": status,
        "seconds": seconds,
        **answer,
    }
    temporary = Path(f"{argv[2]}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(answer, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(argv[2])
    return 2 if status == "FAIL" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
