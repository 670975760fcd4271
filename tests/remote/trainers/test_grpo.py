"""The GRPO trainer as a program: it learns, resumes to the same curve, and refuses bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[3]
TRAINER = CLONE / "remote" / "trainers" / "grpo.py"
EXAMPLE = CLONE / "examples" / "tiny-grpo"
STARTUP = 120  # seconds for importing torch and trl on a busy machine


class Training:
    """One start of the trainer on the example, in a run root."""

    def __init__(self, python: str, model: Path, run_root: Path) -> None:
        self.run_root, self.log = run_root, run_root.with_suffix(".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [python, "-u", str(TRAINER), "--config", str(EXAMPLE / "grpo.yaml")],
                env=os.environ
                | {
                    "MODEL_PATH": str(model),
                    "AUTODL_RUN_ROOT": str(run_root),
                    "OMP_NUM_THREADS": "1",
                    "TORCHDYNAMO_DISABLE": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def points(self) -> list[dict]:
        path = self.run_root / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + STARTUP
        while not any(point["step"] == step for point in self.points()[-3:]):
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.02)

    def finish(self) -> int:
        return self.process.wait(timeout=STARTUP)


@pytest.fixture(scope="module")
def whole(
    host_python: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Training]:
    """The example's training without interruption, begun at once and waited for when needed."""
    training = Training(host_python, tiny_model, tmp_path_factory.mktemp("whole") / "run")
    yield training
    training.process.kill()
    training.process.wait()


@pytest.mark.host_stack
@pytest.mark.slow
def test_interrupted_run_has_the_curve_of_the_whole_one(
    whole: Training, host_python: str, tiny_model: Path, tmp_path: Path
) -> None:
    """SIGTERM saves and exits 143, a damaged checkpoint is passed over, kill -9 loses nothing."""
    run_root = tmp_path / "run"
    first = Training(host_python, tiny_model, run_root)
    first.wait_for_step(11)
    first.process.send_signal(signal.SIGTERM)
    assert first.finish() == 143, first.text
    stopped_at = first.points()[-1]["step"]
    saved = run_root / "checkpoints" / f"checkpoint-{stopped_at}"
    assert 11 <= stopped_at < 30
    assert json.loads((saved / "complete.json").read_text())["step"] == stopped_at
    assert not (run_root / "summary.json").exists()

    damaged = (saved / "optimizer.pt").read_bytes()
    flipped = bytes([damaged[5000] ^ 1])
    (saved / "optimizer.pt").write_bytes(damaged[:5000] + flipped + damaged[5001:])
    (run_root / "checkpoints" / "checkpoint-25").mkdir()  # one that a crash left without its marker

    second = Training(host_python, tiny_model, run_root)
    second.wait_for_step(21)
    second.process.kill()
    assert second.finish() == -signal.SIGKILL
    assert f"skipped {run_root}/checkpoints/checkpoint-25: no complete.json" in second.text
    assert f"skipped {saved}: optimizer.pt: expected sha256" in second.text
    assert f"step 10/30 from {run_root}/checkpoints/checkpoint-10" in second.text

    third = Training(host_python, tiny_model, run_root)
    assert third.finish() == 0, third.text
    assert f"step 20/30 from {run_root}/checkpoints/checkpoint-20" in third.text
    assert whole.finish() == 0, whole.text
    expected = [(point["step"], point["reward"], point["loss"]) for point in whole.points()]
    latest = {
        point["step"]: (point["step"], point["reward"], point["loss"]) for point in third.points()
    }
    assert list(latest.values()) == expected
    weights = "model/model.safetensors"
    assert (run_root / weights).read_bytes() == (whole.run_root / weights).read_bytes()
    assert json.loads((run_root / "summary.json").read_text())["resumed_from"] == 20


@pytest.mark.host_stack
def test_example_learns(whole: Training) -> None:
    """The reward rises from nearly nothing, and every file that was promised is there."""
    assert whole.finish() == 0, whole.text
    points = whole.points()
    assert [point["step"] for point in points] == list(range(1, 31))
    assert points[0]["reward"] < 0.1 < 0.9 < points[-1]["reward"]
    names = "epoch loss lr reward reward_std entropy completion_length throughput at"
    assert all(set(names.split()) <= set(point) for point in points)
    summary = json.loads((whole.run_root / "summary.json").read_text())
    assert (summary["steps"], summary["first_reward"]) == (30, points[0]["reward"])
    assert (summary["last_reward"], summary["threads"]) == (points[-1]["reward"], 1)
    assert summary["versions"]["trl"] != "absent"
    kept = sorted(path.parent.name for path in whole.run_root.glob("checkpoints/*/complete.json"))
    assert kept == ["checkpoint-20", "checkpoint-30"]


# Both verdicts in one process: importing torch takes most of the verifier's time.
VERIFY_EACH = """
import os, runpy, sys
for run_root in sys.argv[1:]:
    os.environ["AUTODL_RUN_ROOT"] = run_root
    try:
        runpy.run_path("verify_reward.py", run_name="__main__")
    except SystemExit as end:
        print(end.code)
"""


@pytest.mark.host_stack
def test_verifier_passes_the_real_run_and_refuses_an_untrained_one(
    whole: Training, host_python: str, tiny_model: Path, tmp_path: Path
) -> None:
    """A flat curve, a summary that says otherwise and the base model as result are all named."""
    assert whole.finish() == 0, whole.text
    lines = [json.dumps({"step": step, "reward": 0.02}) for step in range(1, 31)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    summary = {"steps": 30, "first_reward": 0.02, "last_reward": 0.9}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "model").symlink_to(tiny_model)
    argv = [host_python, "-c", VERIFY_EACH, str(whole.run_root), str(tmp_path)]
    done = run(argv, os.environ | {"MODEL_PATH": str(tiny_model)})
    said = done.stdout.splitlines()
    assert [line for line in said if line.isdigit()] == ["0", "1"], done.stderr
    faults = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    named = [line.split(": ")[2] for line in faults]
    assert named == ["metrics.jsonl", "summary.json", "model"]


CONFIGS = {
    "unknown key": ("lerning_rate: 3e-3", "lerning_rate; did you mean 'learning_rate'?"),
    "wrong type": ("steps: many", "steps: expected a whole number, found 'many'"),
    "a bool is no number": ("beta: true", "beta: expected a number, found 'true'"),
    "out of range": ("generations: 1", "generations: expected at least 2, found '1'"),
    "not finite": ("temperature: inf", "temperature: expected a finite number, found 'inf'"),
    "no such choice": ("precision: fp8", "precision: expected one of auto, bf16, fp32"),
    "inside lora": ("lora: {r: 0}", "lora.r: expected at least 1, found '0'"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_bad_config_is_one_line_with_the_place(case: str, tmp_path: Path) -> None:
    """File, line, key, what was expected and found; before torch is imported, nothing written."""
    line, expected = CONFIGS[case]
    config = tmp_path / "grpo.yaml"
    config.write_text(f"# a comment\n{line}\n")
    done = check(config)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: config refused: {config}:2: ")
    assert expected in done.stderr


def test_all_faults_at_once(tmp_path: Path) -> None:
    """Two wrong keys are two lines, and a key given twice is one of them."""
    (tmp_path / "grpo.yaml").write_text("seed: x\nbatch: 8\nbatch: 16\n")
    assert check(tmp_path / "grpo.yaml").stderr.count("error: config refused") == 2


ROWS = {
    "no JSON": ("{", "no JSON"),
    "a blank line": ("", "a blank line"),
    "no truth": ('{"messages": [{"role": "user", "content": "a"}]}', "ground_truth"),
    "own last word": (
        '{"messages": [{"role": "assistant", "content": "a"}], "ground_truth": 1}',
        "expected user or tool",
    ),
    "an id twice": (
        '{"id": "1", "messages": [{"role": "user", "content": "a"}], "ground_truth": 1}',
        "id '1' is that of line 1 too",
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_bad_row_is_named_by_line(case: str, tmp_path: Path) -> None:
    """A dataset that cannot be trained on is refused with file:line."""
    line, expected = ROWS[case]
    good = '{"id": "1", "messages": [{"role": "user", "content": "a"}], "ground_truth": 1}'
    (tmp_path / "train.jsonl").write_text(f"{good}\n{line}\n")
    (tmp_path / "grpo.yaml").write_text("batch: 8\n")
    done = check(tmp_path / "grpo.yaml")
    assert done.returncode == 1
    assert f"train.jsonl:2: {expected}" in done.stderr or expected in done.stderr
    assert "train.jsonl:2:" in done.stderr


def test_example_config_is_good() -> None:
    """What the example ships passes the same check."""
    done = check(EXAMPLE / "grpo.yaml")
    assert (done.returncode, done.stdout.split(": ")[-1]) == (0, "16 rows, 30 steps\n")


def test_quantization_that_contradicts_the_contract_is_refused(tmp_path: Path) -> None:
    """The config says none, the contract's runtime quantization says nf4: neither wins silently."""
    (tmp_path / "grpo.yaml").write_text("quantization: null\n")
    done = check(tmp_path / "grpo.yaml", AUTODL_RUNTIME_QUANTIZATION="nf4")
    assert done.returncode == 1
    assert "make them agree" in done.stderr


def check(config: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """`--check` needs no torch, so the controller's own Python does."""
    argv = [sys.executable, str(TRAINER), "--config", str(config), "--check"]
    return run(argv, os.environ | env)


def run(argv: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=EXAMPLE, env=env, capture_output=True, text=True, timeout=120)
