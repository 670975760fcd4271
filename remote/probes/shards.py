"""Are a model's weights all there and whole? Reads headers only, never the weights.

    python shards.py request.json response.json

reads   {"model_path": "/data/models/base", "meta": true?}   or "paths": [...]; else $MODEL_PATH
        meta: build the architecture on the meta device and compare shapes (imports transformers)
writes  {"probe", "status", "seconds", "checks": [{name status found expected fix}],
        "packages": {name: version}}, under a temporary name, then renamed
exit    0 PASS or SKIP · 2 FAIL · 64 usage · anything else is a traceback

A safetensors file is 8 bytes of header length, a JSON header and the tensors without a gap, so the
header says to the byte how long the file must be (huggingface/safetensors, README, "Format").
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

INDEX, MARKER = "model.safetensors.index.json", ".autodl_model_complete.json"
MAX_HEADER = 100 * 2**20  # the format's own limit
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16,
    "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
FETCH_AGAIN = "run the snapshot step again: it fetches only damaged files"


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """For each folder: its marker, its index, every shard's arithmetic, its shapes."""
    paths = request.get("paths") or [request.get("model_path") or os.environ.get("MODEL_PATH", "")]
    checks: list[dict[str, Any]] = []
    packages: dict[str, str] = {}
    for path in map(Path, filter(None, paths)):
        shapes = check_folder(path, checks)
        if shapes and request.get("meta", True):
            checks.append(check_shapes(path, shapes))
            packages["transformers"] = importlib.metadata.version("transformers")
    return {"checks": checks or [check("shards", "SKIP", "no model", "a model")]} | {
        "packages": packages
    }


def check_folder(path: Path, checks: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Appends the checks of one folder; the shapes by tensor name, empty if anything is wrong."""
    if not (path / "config.json").is_file():
        checks.append(
            check(f"{path.name}", "FAIL", f"no config.json in {path}", "a model", FETCH_AGAIN)
        )
        return {}
    before = len(checks)
    checks += check_marker(path)
    homes = read_index(path, checks)
    shards = sorted(set(homes.values())) or sorted(one.name for one in path.glob("*.safetensors"))
    if not shards:
        checks.append(
            check(f"{path.name} weights", "FAIL", "no *.safetensors", "some", FETCH_AGAIN)
        )
    shapes: dict[str, list[int]] = {}
    for shard in shards:
        found, fault = read_header(path / shard)
        absent = [name for name, home in homes.items() if home == shard and name not in found]
        if not fault and absent:
            fault = f"{len(absent)} tensors of the index are not in it, the first is {absent[0]}"
        state, said = ("FAIL", fault) if fault else ("PASS", f"{len(found)} tensors")
        title = f"{path.name}/{shard}"
        checks.append(
            check(title, state, said, "as long as its header says", fault and FETCH_AGAIN)
        )
        shapes |= found
    return {} if any(one["status"] == "FAIL" for one in checks[before:]) else shapes


def check_marker(path: Path) -> list[dict[str, Any]]:
    """The snapshot's completion marker, where there is one: every file there with its size."""
    if not (path / MARKER).is_file():
        return []
    title = f"{path.name}/{MARKER}"
    try:
        marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
        files = {one["path"]: one.get("bytes", one.get("size")) for one in marker["files"]}
    except (ValueError, KeyError, TypeError) as error:
        return [check(title, "FAIL", str(error), "a readable marker", FETCH_AGAIN)]
    wrong = [
        name
        for name, size in files.items()
        if not (path / name).is_file() or (path / name).stat().st_size != size
    ]
    if marker.get("status") != "completed" or wrong:
        said = f"status {marker.get('status')}, wrong or missing: {', '.join(wrong[:5]) or 'none'}"
        return [check(title, "FAIL", said, "completed, every file with its size", FETCH_AGAIN)]
    return [check(title, "PASS", f"{len(files)} files", "completed, every file with its size")]


def read_index(path: Path, checks: list[dict[str, Any]]) -> dict[str, str]:
    """Tensor name -> shard by the index; empty for a model of one file."""
    if not (path / INDEX).is_file():
        return {}
    title = f"{path.name}/{INDEX}"
    try:
        homes = dict(json.loads((path / INDEX).read_text(encoding="utf-8"))["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        checks.append(check(title, "FAIL", f"{error}", "a weight_map", FETCH_AGAIN))
        return {}
    wanted = sorted(set(homes.values()))
    missing = [one for one in wanted if not (path / one).is_file()]
    said = f"{len(missing)} of {len(wanted)} missing: {', '.join(missing[:5])}"
    if missing:
        checks.append(check(title, "FAIL", said, f"{len(wanted)} shards", FETCH_AGAIN))
    else:
        checks.append(check(title, "PASS", f"{len(wanted)} shards", f"{len(wanted)} shards"))
    return homes


def read_header(path: Path) -> tuple[dict[str, list[int]], str]:
    """(shape by tensor, what is wrong or nothing); every byte of the file must be accounted for."""
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:
            first = handle.read(8)
            if len(first) < 8:
                return {}, f"{size} bytes, too short for a header"
            length = struct.unpack("<Q", first)[0]
            if length > min(size - 8, MAX_HEADER):
                return {}, f"a header of {length} bytes in a file of {size}"
            header = json.loads(handle.read(length))
        header.pop("__metadata__", None)
        tensors = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        return read_tensors(tensors, size - 8 - length)
    except FileNotFoundError:
        return {}, "not there"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, f"header not readable: {type(error).__name__}: {error}"


def read_tensors(tensors: list[tuple[str, Any]], size: int) -> tuple[dict[str, list[int]], str]:
    shapes, reached = {}, 0
    for name, one in tensors:
        begin, end = one["data_offsets"]
        if begin != reached:
            return {}, f"{name} begins at {begin}, expected {reached}"
        bits = BITS.get(one["dtype"])
        if bits and math.prod(one["shape"]) * bits != (end - begin) * 8:
            return {}, f"{name}: {one['dtype']} {one['shape']} does not fill {end - begin} bytes"
        shapes[name], reached = one["shape"], end
    if reached != size:
        kind = "truncated" if size < reached else "too long"
        return {}, f"{kind}: expected {reached} bytes of tensors, found {size}"
    return shapes, ""


def check_shapes(path: Path, shapes: dict[str, list[int]]) -> dict[str, Any]:
    """The architecture of config.json, built without memory, against the shards' shapes."""
    title, expected = f"{path.name} architecture", "the shapes of config.json"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(path, local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        wanted = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    except Exception as error:  # noqa: BLE001 - remote code, unknown types: all are the finding
        text = f"{type(error).__name__}: {error}"[:300]
        return check(title, "FAIL", text, expected, "take a transformers that knows this model")
    both = [name for name in wanted if name in shapes]
    if getattr(config, "quantization_config", None) or len(both) < len(wanted) / 2:
        return check(
            title, "SKIP", "stored otherwise than it runs (converted when loaded)", expected
        )
    wrong = [name for name in both if wanted[name] != shapes[name]]
    if wrong:
        said = f"{wrong[0]} is {shapes[wrong[0]]}, config.json says {wanted[wrong[0]]}"
        return check(title, "FAIL", said, expected, "config.json and weights are of two models")
    return check(title, "PASS", f"{type(model).__name__}, {len(both)} tensors agree", expected)


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
