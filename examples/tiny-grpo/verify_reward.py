"""Checks that the reward really rose, without believing the trainer's own figures alone.

    AUTODL_RUN_ROOT=/tmp/run MODEL_PATH=model python verify_reward.py

env     AUTODL_RUN_ROOT   the run's folder: metrics.jsonl, summary.json, model/
        MODEL_PATH        the base model that the run started from
reads   train.jsonl and judge.py beside this file
prints  a line a check; with failures, each of them on stderr
exit    0 the reward rose; 1 it did not, or something is missing

Three witnesses: the curve in metrics.jsonl, the summary against that curve, and answers sampled
here from the base and from the trained model, judged here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RISE = 0.3  # that much more than at the start
HIGH = 0.6  # and at least that much at the end
ENDS = 5  # steps averaged at either end of the curve
ANSWERS = 4  # sampled for each prompt
TOLERANCE = 0.2  # between the curve's end and what the saved model earns here


def main() -> int:
    problems: list[str] = []
    try:
        run_root, base = folder("AUTODL_RUN_ROOT"), folder("MODEL_PATH")
        last = check_curve(run_root, problems)
        check_samples(base, run_root / "model", last, problems)
    except Missing as missing:
        problems.append(str(missing))
    for problem in problems:
        print(f"error: reward not verified: {problem}", file=sys.stderr)
    return 1 if problems else 0


class Missing(Exception):
    """Something without which nothing can be checked."""


def folder(variable: str) -> Path:
    value = os.environ.get(variable, "")
    if not value or not Path(value).is_dir():
        raise Missing(f"{variable}: expected a folder, found {value!r}")
    return Path(value)


def check_curve(run_root: Path, problems: list[str]) -> float:
    """The rise in metrics.jsonl, and the summary against it; returns the mean of the last steps."""
    for name in ("metrics.jsonl", "summary.json"):
        if not (run_root / name).is_file():
            raise Missing(f"{run_root / name} is not there")
    curve: dict[int, float] = {}
    for number, line in enumerate((run_root / "metrics.jsonl").read_text().splitlines(), 1):
        point = json.loads(line)
        if not isinstance(point["reward"], float):
            raise Missing(f"metrics.jsonl:{number}: reward {point['reward']!r} is no number")
        curve[point["step"]] = point["reward"]
    rewards = [curve[step] for step in sorted(curve)]
    if sorted(curve) != list(range(1, len(curve) + 1)) or len(curve) < 2 * ENDS:
        raise Missing(
            f"metrics.jsonl: expected steps from 1 to {2 * ENDS} or more, found {len(curve)}"
        )

    first, last = mean(rewards[:ENDS]), mean(rewards[-ENDS:])
    print(f"curve: {first:.3f} -> {last:.3f} over {len(rewards)} steps")
    if last < max(HIGH, first + RISE):
        problems.append(
            f"metrics.jsonl: expected a rise of {RISE} to at least {HIGH}, "
            f"found {first:.3f} -> {last:.3f}"
        )
    summary = json.loads((run_root / "summary.json").read_text())
    said = (summary["steps"], summary["first_reward"], summary["last_reward"])
    seen = (len(rewards), rewards[0], rewards[-1])
    if said != seen:
        problems.append(f"summary.json: expected steps and rewards {seen}, found {said}")
    return last


def check_samples(base: Path, trained: Path, last: float, problems: list[str]) -> None:
    """Answers of both models, sampled and judged here."""
    if not (trained / "config.json").is_file():
        raise Missing(f"no trained model at {trained}")
    before, after = sampled_reward(base), sampled_reward(trained)
    print(f"sampled here: base {before:.3f}, trained {after:.3f}")
    if after < max(HIGH, before + RISE):
        problems.append(
            f"model: expected {RISE} more than the base and at least {HIGH}, "
            f"found {before:.3f} -> {after:.3f}"
        )
    if abs(after - last) > TOLERANCE:
        problems.append(f"model: expected the curve's end of {last:.3f}, found {after:.3f}")


def sampled_reward(path: Path) -> float:
    """The judge's mean over ANSWERS answers to each prompt, from a fixed seed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # two seconds less to import torch
    sys.dont_write_bytecode = True  # the project is a verified tree, and stays one
    import torch
    from judge import compute_reward
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True).eval()
    rows = [json.loads(line) for line in (HERE / "train.jsonl").read_text().splitlines()]
    inputs = tokenizer.apply_chat_template(
        [row["messages"] for row in rows for _ in range(ANSWERS)],
        add_generation_prompt=True,
        padding=True,
        return_dict=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        output = model.generate(**inputs, do_sample=True, top_k=0, max_new_tokens=8)
    said = output[:, inputs["input_ids"].shape[1] :]
    answers = tokenizer.batch_decode(said, skip_special_tokens=True)
    truths = [row["ground_truth"] for row in rows for _ in range(ANSWERS)]
    return mean([compute_reward(a, t, {}) for a, t in zip(answers, truths, strict=True)])


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    sys.exit(main())
