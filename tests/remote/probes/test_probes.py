"""The probes as programs: what is well passes, and each thing that breaks a run is caught."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROBES = Path(__file__).parents[3] / "remote" / "probes"


def run(
    python: str, name: str, request: dict, folder: Path, expect: int
) -> dict[str, dict[str, str]]:
    """The answer's checks by name; the file is only ever whole, and agrees with the exit code."""
    (folder / "request.json").write_text(json.dumps(request))
    done = subprocess.run(
        [python, str(PROBES / f"{name}.py"), "request.json", "response.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == expect, done.stderr
    answer = json.loads((folder / "response.json").read_text())
    assert (answer["probe"], answer["status"] == "FAIL") == (name, expect == 2)
    assert [path.name for path in folder.glob("response.json*")] == ["response.json"]
    for one in answer["checks"]:
        assert set(one) >= {"name", "status", "found", "expected", "fix"}
        assert bool(one["fix"]) == (one["status"] == "FAIL"), one
    return {one["name"]: one for one in answer["checks"]}


@pytest.mark.host_stack
def test_all_of_them_pass_on_the_example(
    host_python: str, tiny_model: Path, tmp_path: Path
) -> None:
    """In one process: versions, NF4, signatures of our trainers, shards, tokenizer and template."""
    request = {
        "imports": {"modules": ["torch", "trl", "bitsandbytes"]},
        "cuda": {"count": 1, "name": "any", "min_vram_gib": 0, "required": False},
        "nf4": {},
        "trl_signatures": {"trainer": "grpo"},
        "shards": {"model_path": str(tiny_model)},
        "tokenizer": {"model_path": str(tiny_model)},
    }
    checks = run(host_python, "full", {"probes": request}, tmp_path, 0)
    passed = {name for name, one in checks.items() if one["status"] == "PASS"}
    assert passed >= {
        "import trl",
        "nf4",
        "grpo.py: trl.GRPOConfig",
        "grpo.py: trl.GRPOTrainer",
        "model/model.safetensors",
        "model architecture",
        "model tokenizer round trip",
        "model tokenizer chat template",
    }
    assert checks["cuda"]["status"] == "PASS" or "any device" in checks["cuda"]["found"]
    packages = json.loads((tmp_path / "response.json").read_text())["packages"]
    assert packages["trl"].split(".")[0] == "1"


@pytest.mark.host_stack
def test_each_fault_is_caught_and_the_others_still_run(
    host_python: str, tiny_model: Path, tmp_path: Path
) -> None:
    """An absent module, a wrong version, no GPU, a dropped argument, files of two models."""
    program = tmp_path / "train.py"
    program.write_text(
        "from trl import GRPOConfig\nfrom trl import PPOTrainer\n"
        "GRPOConfig(max_steps=1,\n  max_prompt_length=8)\nPPOTrainer(args=None)\n"
    )
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    tokenizer["chat_template"] = "{{ 'nothing of it' }}"
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    request = {
        "imports": {"modules": ["no_such_module"], "versions": {"trl": "0.1.0"}},
        "cuda": {"required": True, "count": 99},
        "no_such_probe": {},
        "trl_signatures": {"programs": [str(program)]},
        "shards": {"model_path": str(model)},
        "tokenizer": {"model_path": str(model)},
    }
    checks = run(host_python, "full", {"probes": request}, tmp_path, 2)
    failed = {name: one["found"] for name, one in checks.items() if one["status"] == "FAIL"}
    assert set(failed) == {
        "import no_such_module",
        "import trl",
        "cuda",
        "no_such_probe",
        "train.py: trl.GRPOConfig",
        "train.py: trl.PPOTrainer",
        "model architecture",
        "model vocabulary",
        "model tokenizer chat template",
    }
    assert failed["train.py: trl.GRPOConfig"] == "does not take max_prompt_length (line 4)"
    assert checks["model/model.safetensors"]["status"] == "PASS"


def truncate(model: Path) -> str:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return "truncated: expected 448768 bytes of tensors, found 448668"


def cut_in_the_header(model: Path) -> str:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    return "in a file of 50"


def overlong(model: Path) -> str:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")
    return "too long"


def other_shape(model: Path) -> str:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"[400,64]", b"[401,64]"))
    return "does not fill"


def shard_missing(model: Path) -> str:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return "1 of 2 missing: model-2.safetensors"


def tensor_missing(model: Path) -> str:
    index = {"weight_map": {"lm_head.weight": "model.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return "1 tensors of the index are not in it, the first is lm_head.weight"


def marker_disagrees(model: Path) -> str:
    marker = {"status": "completed", "files": [{"path": "config.json", "bytes": 1}]}
    (model / ".autodl_model_complete.json").write_text(json.dumps(marker))
    return "wrong or missing: config.json"


def no_config(model: Path) -> str:
    (model / "config.json").unlink()
    return "no config.json"


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's files with nothing but the standard library: two tensors of the example's size."""
    folder = tmp_path_factory.mktemp("plain") / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    embedding, rest = 400 * 64 * 4, 448768 - 400 * 64 * 4
    tensors = {
        "embed": {"dtype": "F32", "shape": [400, 64], "data_offsets": [0, embedding]},
        "rest": {"dtype": "F32", "shape": [rest // 4], "data_offsets": [embedding, 448768]},
    }
    header = json.dumps(tensors, separators=(",", ":")).encode()
    weights = struct.pack("<Q", len(header)) + header + bytes(448768)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


@pytest.mark.parametrize(
    "harm",
    [
        truncate,
        cut_in_the_header,
        overlong,
        other_shape,
        shard_missing,
        tensor_missing,
        marker_disagrees,
        no_config,
    ],
)
def test_damaged_weights_are_caught_by_arithmetic(
    harm: Callable[[Path], str], plain_model: Path, tmp_path: Path
) -> None:
    """No weight is loaded and no library imported: lengths, offsets and names are enough."""
    model = tmp_path / "model"
    shutil.copytree(plain_model, model)
    request = {"model_path": str(model), "meta": False}
    run(sys.executable, "shards", request, tmp_path, 0)
    expected = harm(model)
    checks = run(sys.executable, "shards", request, tmp_path, 2)
    assert any(expected in one["found"] for one in checks.values() if one["status"] == "FAIL")


def test_nothing_asked_is_a_skip(tmp_path: Path) -> None:
    """Quantization null: NF4 is not tried, and that is said."""
    checks = run(sys.executable, "nf4", {"quantization": None}, tmp_path, 0)
    assert checks["nf4"]["status"] == "SKIP"


def test_usage_is_64() -> None:
    """Without both files a probe says how it is called."""
    done = subprocess.run([sys.executable, str(PROBES / "cuda.py")], capture_output=True, text=True)
    assert done.returncode == 64
    assert "REQUEST.json RESPONSE.json" in done.stderr
