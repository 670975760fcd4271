"""Trains a language model by GRPO (TRL 1.16), against a reward that the project brings along.

    MODEL_PATH=model AUTODL_RUN_ROOT=/tmp/run python -u grpo.py --config grpo.yaml
    python grpo.py --config grpo.yaml --check     # config, data and judge only; 0.2 s, no torch
    python grpo.py --keys                         # every key of the config: type, default, meaning

argv    --config FILE     YAML; `--keys` prints its keys; paths in it start from FILE's folder
        --check           stop after reading everything that can be read without loading a model
env     MODEL_PATH        folder of the base model (config.json, *.safetensors, tokenizer), required
        AUTODL_RUN_ROOT   folder that everything is written to, made when absent, required
        AUTODL_RUNTIME_QUANTIZATION   `nf4` asks for QLoRA unless the config decides
        OMP_NUM_THREADS   CPU threads
        CHARTER_ATTEMPT   goes into each metrics line
reads   dataset           JSON lines {"id"?, "messages": [{"role", "content"}...], "ground_truth"}
        judge             a file with compute_reward(response, ground_truth, metadata) -> 0.0 to 1.0
writes  metrics.jsonl     a line a step: step epoch loss lr grad_norm reward reward_std entropy
                          completion_length (tokens) throughput (generated tokens a second)
                          attempt at, and kl when beta > 0; nan and inf as strings. Only appended
                          to: a step that a resumed run repeats has two lines, the later counts.
        checkpoints/checkpoint-N/   what TRL saves, then complete.json with every file's bytes and
                          SHA-256: the marker that makes it a checkpoint. Older ones are removed
                          only after a newer one is complete.
        model/            the trained model (with LoRA: the adapter) and tokenizer, renamed into it
        summary.json      last of all, only by a run that reached its last step
resume  by being started again: from the newest checkpoint whose marker and hashes hold; a damaged
        one is named and skipped. Same rewards as without the interruption (with QLoRA: up to the
        rounding of its bf16 adapter).
exit    0 done · 1 input that a person can fix, one line each on stderr · 143 SIGTERM: the step in
        hand was finished and a checkpoint saved · anything else is a traceback

One process, one GPU (or none: everything here runs on a CPU too). Python 3.10. It imports nothing
of Charter's, so that it can be copied out and run alone; hence its length.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import random
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

MARKER = "complete.json"
PACKAGES = ("torch", "trl", "transformers", "peft", "bitsandbytes", "accelerate", "datasets")
ROLES = ("system", "user", "assistant", "tool")


# --- the order of things ------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path)
    parser.add_argument("--check", action="store_true", help="read config, data and judge only")
    parser.add_argument("--keys", action="store_true", help="print the keys of the config")
    args = parser.parse_args(argv)
    if args.keys:
        print(describe_keys())
        return 0
    if args.config is None:
        parser.error("--config FILE is required")

    stop = StopRequest()
    signal.signal(signal.SIGTERM, stop.receive)
    try:
        settings = read_settings(args.config, os.environ.get("AUTODL_RUNTIME_QUANTIZATION", ""))
        rows = read_rows(settings)
        judge = load_judge(Path(settings.judge))
        if args.check:
            print(f"{args.config} is good: {len(rows)} rows, {settings.steps} steps")
            return 0
        place = read_place(os.environ)
        return train(settings, rows, judge, place, stop)
    except Refused as refused:
        for line in refused.lines:
            print(f"error: {line}", file=sys.stderr)
        return 1


class Refused(Exception):
    """Something a person can fix, every fault found a line of its own."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class StopRequest:
    """SIGTERM: at once while nothing would be lost, at the end of the step while training."""

    def __init__(self) -> None:
        self.asked = False
        self.training = False

    def receive(self, signum: int, _frame: object) -> None:
        self.asked = True
        if not self.training:
            raise SystemExit(128 + signum)
        print("SIGTERM: finishing this step, then saving a checkpoint", flush=True)


# --- the config ---------------------------------------------------------------------------------


def key(default: object, meaning: str, **limits: object) -> Any:
    """A setting; limits: `low` and `high` (inclusive), `above` (exclusive), `choices`."""
    return field(default=default, metadata={"meaning": meaning, **limits})


@dataclass(frozen=True)
class Lora:
    r: int = key(16, "rank", low=1)
    alpha: int = key(32, "scale is alpha / r", low=1)
    dropout: float = key(0.0, "on the adapter's input", low=0, high=1)
    target_modules: str = key("all-linear", "names with commas between, or all-linear")


@dataclass(frozen=True)
class Settings:
    dataset: str = key("train.jsonl", "rows to train on")
    judge: str = key("judge.py", "file with compute_reward")
    steps: int = key(100, "optimizer steps in all", low=1)
    batch: int = key(16, "answers per forward pass, a multiple of generations", low=2)
    gradient_accumulation: int = key(1, "forward passes per step", low=1)
    generations: int = key(8, "answers per prompt that are compared", low=2)
    completion_length: int = key(256, "tokens per answer at most", low=1)
    temperature: float = key(1.0, "of sampling", above=0)
    top_p: float = key(1.0, "of sampling", above=0, high=1)
    learning_rate: float = key(1e-6, "peak", above=0)
    lr_schedule: str = key("constant", "after warm-up", choices=("constant", "linear", "cosine"))
    warmup_steps: int = key(0, "steps until the peak", low=0)
    weight_decay: float = key(0.0, "of AdamW", low=0)
    max_grad_norm: float = key(1.0, "gradients are clipped to it", above=0)
    beta: float = key(0.0, "KL coefficient; 0 keeps no reference model", low=0)
    epsilon: float = key(0.2, "clipping range", above=0)
    save_steps: int = key(50, "a checkpoint every so many steps, and at the end", low=1)
    keep_checkpoints: int = key(2, "complete ones; older are removed", low=1)
    seed: int = key(0, "of everything random", low=0, high=2**32 - 1)
    precision: str = key("auto", "auto: bf16 on a GPU", choices=("auto", "bf16", "fp32"))
    gradient_checkpointing: bool = key(True, "slower, less memory")
    quantization: str | None = key(None, "nf4: QLoRA, needs lora", choices=("nf4",))
    lora: Lora | None = field(
        default=None, metadata={"meaning": "train an adapter: r, alpha, dropout, target_modules"}
    )


def describe_keys() -> str:
    lines = []
    for one in dataclasses.fields(Settings):
        limits = {name: value for name, value in one.metadata.items() if name != "meaning"}
        extra = "".join(f", {name} {value}" for name, value in limits.items())
        lines.append(
            f"{one.name:24}{one.type} = {one.default!r}{extra}  # {one.metadata['meaning']}"
        )
    return "\n".join(lines)


def read_settings(path: Path, runtime_quantization: str) -> Settings:
    """The checked config, with paths made absolute from the config's folder.

    Raises:
        Refused: not readable, or any key unknown, given twice, of the wrong type or out of range.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise Refused(f"config not read: {path}: {error.strerror}; give --config FILE") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Refused(f"config is no YAML: {path}: {' '.join(str(error).split())}") from error
    if root is None:
        raise Refused(f"config is empty: {path}; `--keys` lists what belongs in it")

    problems: list[str] = []
    values = read_mapping(root, Settings, str(path), "", problems)
    if problems:
        raise Refused(*problems)
    values["quantization"] = settle_quantization(values, runtime_quantization, path)
    for name in ("dataset", "judge"):
        given = values.get(name, getattr(Settings, name))
        values[name] = str((path.absolute().parent / given).resolve())
    settings = Settings(**values)
    answers = settings.batch * settings.gradient_accumulation
    if answers % settings.generations:
        raise Refused(
            f"config refused: {path}: batch × gradient_accumulation: expected a multiple of "
            f"generations ({settings.generations}), found {answers}"
        )
    if settings.quantization and settings.lora is None:
        raise Refused(
            f"config refused: {path}: quantization {settings.quantization}: 4-bit weights cannot "
            "be trained themselves; add `lora: {r: 16, alpha: 32}`"
        )
    return settings


def read_mapping(
    node: Any, kind: type, file: str, prefix: str, problems: list[str]
) -> dict[str, Any]:
    """The values of a YAML mapping by the fields of `kind`; faults go to `problems`."""
    if node.id != "mapping":
        what = prefix.rstrip(".") or "the config"
        problems.append(f"{at(file, node)} {what}: expected keys with values, found {show(node)}")
        return {}
    known = {one.name: one for one in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        name, where = str(key_node.value), at(file, key_node)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            move = f"did you mean {near[0]!r}?" if near else "`--keys` lists the keys"
            problems.append(f"{where} unknown key: {prefix}{name}; {move}")
        elif name in values:
            problems.append(f"{where} key given twice: {prefix}{name}; remove one")
        elif known[name].type == "Lora | None" and not is_null(value_node):
            found = read_mapping(value_node, Lora, file, f"{name}.", problems)
            values[name] = Lora(**found)
        else:
            values[name] = read_scalar(value_node, known[name], f"{where} {prefix}{name}", problems)
    return values


def read_scalar(node: Any, one: Any, where: str, problems: list[str]) -> Any:
    """One value, of the field's type and within its limits (null where a mapping may be absent)."""
    kind, limits = str(one.type), one.metadata
    if is_null(node) and kind.endswith("| None"):
        return None
    parsers = {"int": int, "float": float, "bool": parse_bool, "str": str, "str | None": str}
    value = None
    if node.id == "scalar" and not is_null(node) and kind in parsers:
        quoted, boolean = node.style in ("'", '"'), node.tag.endswith(":bool")
        text = "str" in kind
        # `3e-3` is a string to YAML 1.1 and a number to everybody else, so the text is what counts.
        if text or (not quoted and boolean == (kind == "bool")):
            try:
                value = parsers[kind](node.value)
            except ValueError:
                value = None
    if value is None:
        problems.append(f"{where}: expected {plain(kind)}, found {show(node)}")
        return one.default
    if wrong := out_of_limits(value, limits):
        problems.append(f"{where}: expected {wrong}, found {show(node)}")
    return value


def out_of_limits(value: Any, limits: Mapping[str, Any]) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if "low" in limits and value < limits["low"]:
        return f"at least {limits['low']}"
    if "above" in limits and value <= limits["above"]:
        return f"more than {limits['above']}"
    if "high" in limits and value > limits["high"]:
        return f"at most {limits['high']}"
    if "choices" in limits and value not in limits["choices"]:
        return "one of " + ", ".join(limits["choices"])
    if value == "":
        return "some text"
    return ""


def parse_bool(text: str) -> bool:
    return text.lower() in ("true", "yes", "on")


def is_null(node: Any) -> bool:
    return node.id == "scalar" and node.tag.endswith(":null")


def at(file: str, node: Any) -> str:
    return f"config refused: {file}:{node.start_mark.line + 1}:"


def plain(kind: str) -> str:
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
    return names.get(kind.removesuffix(" | None"), kind)


def show(node: Any) -> str:
    return repr(node.value) if node.id == "scalar" else f"a {node.id}"


def settle_quantization(values: Mapping[str, Any], runtime: str, path: Path) -> str | None:
    """The config decides; else the contract's runtime quantization, from the environment."""
    wanted = runtime.strip().lower()
    asked = {"": None, "unspecified": None, "none": None}.get(wanted, wanted)
    if asked is not None and "nf4" in asked:
        asked = "nf4"
    if "quantization" not in values:
        if asked not in (None, "nf4"):
            raise Refused(
                f"quantization refused: AUTODL_RUNTIME_QUANTIZATION: expected nf4 or nothing, "
                f"found {runtime!r}"
            )
        return asked
    if asked is not None and values["quantization"] != asked:
        raise Refused(
            f"quantization refused: {path} says {values['quantization']}, "
            f"AUTODL_RUNTIME_QUANTIZATION says {runtime!r}; make them agree, or leave "
            "the key out of the config"
        )
    return values["quantization"]


# --- data, judge, places ------------------------------------------------------------------------


def read_rows(settings: Settings) -> list[dict[str, Any]]:
    """The rows of the dataset.

    Raises:
        Refused: the file is missing, or any row is none that can be trained on (file:line each).
    """
    path = Path(settings.dataset)
    if not path.is_file():
        raise Refused(f"dataset not found: {path}; set `dataset` in the config")
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    seen: dict[object, int] = {}
    for number, raw in enumerate(path.read_bytes().decode("utf-8-sig").splitlines(), 1):
        row, fault = parse_row(raw)
        if not fault and "id" in row and seen.setdefault(str(row["id"]), number) != number:
            fault = f"id {row['id']!r} is that of line {seen[str(row['id'])]} too"
        if fault:
            problems.append(f"dataset refused: {path}:{number}: {fault}")
        rows.append(row)
    prompts = prompts_per_step(settings)
    if not problems and len(rows) < prompts:
        problems.append(
            f"dataset refused: {path}: expected at least the {prompts} prompts of one step, found "
            f"{len(rows)} rows; lower `batch` or raise `generations`"
        )
    if problems:
        shown = problems[:20]
        if len(problems) > len(shown):
            shown.append(f"dataset refused: {path}: and {len(problems) - len(shown)} lines more")
        raise Refused(*shown)
    return rows


def parse_row(raw: str) -> tuple[dict[str, Any], str]:
    """(row, what is wrong with it or nothing)."""
    if not raw.strip():
        return {}, "a blank line"
    try:
        row = json.loads(raw)
    except ValueError as error:
        return {}, f"no JSON: {error}"
    if not isinstance(row, dict):
        return {}, f"expected an object, found {type(row).__name__}"
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        return row, "messages: expected a list with something in it"
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            return row, f"messages[{place}]: expected role and content, both text"
        if message.get("role") not in ROLES:
            return row, f"messages[{place}].role: expected one of {', '.join(ROLES)}"
        if message["role"] == "system" and place:
            return row, f"messages[{place}].role: system comes first or not at all"
    if messages[-1]["role"] not in ("user", "tool"):
        return row, "messages: the last one is the model's own; expected user or tool"
    if row.get("ground_truth") is None:
        return row, "ground_truth: missing or null"
    return row, ""


def load_judge(path: Path) -> Callable[..., Any]:
    """`compute_reward` of the judge's file.

    Raises:
        Refused: no such file, it does not import, or it has no such function.
    """
    if not path.is_file():
        raise Refused(f"judge not found: {path}; set `judge` in the config")
    # Behind everything else, so that the judge finds its neighbours and hides no library.
    sys.path.append(str(path.parent))
    sys.dont_write_bytecode = True  # the project is a verified tree, and stays one
    spec = importlib.util.spec_from_file_location("judge", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["judge"] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Refused(f"judge does not import: {path}: {type(error).__name__}: {error}") from error
    judge = getattr(module, "compute_reward", None)
    if not callable(judge):
        raise Refused(f"judge has no compute_reward(response, ground_truth, metadata): {path}")
    return judge


@dataclass(frozen=True)
class Place:
    """Where the model is read and where everything is written."""

    model: Path
    run_root: Path
    attempt: int

    @property
    def metrics(self) -> Path:
        return self.run_root / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.run_root / "checkpoints"


def read_place(env: Mapping[str, str]) -> Place:
    needed = ("MODEL_PATH", "AUTODL_RUN_ROOT")
    if problems := [f"{name} is not set" for name in needed if not env.get(name)]:
        raise Refused(*problems)
    model = Path(env["MODEL_PATH"]).absolute()
    if not (model / "config.json").is_file():
        raise Refused(f"no model at MODEL_PATH: {model}: expected a folder with config.json")
    attempt = env.get("CHARTER_ATTEMPT", "1")
    return Place(
        model, Path(env["AUTODL_RUN_ROOT"]).absolute(), int(attempt) if attempt.isdigit() else 1
    )


# --- training -----------------------------------------------------------------------------------


def train(
    settings: Settings,
    rows: list[dict[str, Any]],
    judge: Callable[..., Any],
    place: Place,
    stop: StopRequest,
) -> int:
    started = time.monotonic()
    # A base model comes from a verified folder: nothing may be fetched behind its back.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    place.checkpoints.mkdir(parents=True, exist_ok=True)
    cut_torn_line(place.metrics)

    trainer = build_trainer(settings, rows, judge, place, stop)
    checkpoint = newest_complete_checkpoint(place.checkpoints, identity(settings))
    resumed_from = int(checkpoint.name.split("-")[1]) if checkpoint else 0
    print(f"step {resumed_from}/{settings.steps} from {checkpoint or place.model}", flush=True)

    began = time.monotonic()
    stop.training = True
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    stop.training = False
    seconds = time.monotonic() - began
    step = trainer.state.global_step
    if step < settings.steps:
        if not stop.asked:
            raise RuntimeError(f"training ended at step {step} of {settings.steps} by itself")
        print(f"stopped at step {step}/{settings.steps}; start again to go on", flush=True)
        return 128 + signal.SIGTERM

    save_model(trainer, place)
    summary = summarise(settings, rows, place, trainer)
    summary |= {
        "resumed_from": resumed_from,
        "seconds": round(seconds, 3),
        "process_seconds": round(time.monotonic() - started, 3),
    }
    write_json(place.run_root / "summary.json", summary)
    print(
        f"done: reward {summary['first_reward']} -> {summary['last_reward']} in {step} steps, "
        f"{seconds:.1f} s; {place.run_root / 'model'}",
        flush=True,
    )
    return 0


def build_trainer(
    settings: Settings,
    rows: list[dict[str, Any]],
    judge: Callable[..., Any],
    place: Place,
    stop: StopRequest,
) -> Any:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, BitsAndBytesConfig, PrinterCallback
    from transformers.utils import logging as transformers_logging
    from trl import GRPOConfig, GRPOTrainer

    transformers_logging.disable_progress_bar()  # a log is no terminal
    # What TRL calls by its old name in transformers is TRL's to mend.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    if threads := os.environ.get("OMP_NUM_THREADS", ""):
        torch.set_num_threads(int(threads))
    gpu = torch.cuda.is_available()
    if torch.cuda.device_count() > 1:
        raise Refused(
            f"this trainer uses one GPU: {torch.cuda.device_count()} are visible; set "
            "CUDA_VISIBLE_DEVICES=0 under run.env of the contract"
        )
    bf16 = settings.precision == "bf16" or (
        settings.precision == "auto" and gpu and torch.cuda.is_bf16_supported()
    )
    config = GRPOConfig(
        output_dir=str(place.checkpoints),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch,
        gradient_accumulation_steps=settings.gradient_accumulation,
        num_generations=settings.generations,
        max_completion_length=settings.completion_length,
        temperature=settings.temperature,
        top_p=settings.top_p,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.lr_schedule,
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        beta=settings.beta,
        epsilon=settings.epsilon,
        seed=settings.seed,
        use_cpu=not gpu,
        bf16=bf16,
        gradient_checkpointing=settings.gradient_checkpointing,
        model_init_kwargs={
            "dtype": "bfloat16" if bf16 and settings.lora else "float32",
            "local_files_only": True,
        },
        logging_steps=1,
        logging_nan_inf_filter=False,  # a nan is to be seen, not replaced by an average
        save_strategy="steps",
        save_steps=settings.save_steps,
        save_total_limit=None,  # it would remove the old one before the new one is known whole
        disable_tqdm=True,
        report_to="none",
        dataloader_pin_memory=gpu,
        shuffle_dataset=False,  # the order below is shuffled already
    )
    order = prompt_order(len(rows), settings)
    tokenizer = AutoTokenizer.from_pretrained(
        place.model, local_files_only=True, padding_side="left", truncation_side="left"
    )
    if tokenizer.chat_template is None:
        raise Refused(f"the model's tokenizer has no chat template: {place.model}")
    four_bit = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    trainer = GRPOTrainer(
        model=str(place.model),
        args=config,
        reward_funcs=reward_of(judge, rows),
        # The rows stay here and are found by number: their other columns may be of any type.
        train_dataset=Dataset.from_dict(
            {"prompt": [rows[number]["messages"] for number in order], "row": order}
        ),
        processing_class=tokenizer,
        quantization_config=four_bit if settings.quantization else None,
        peft_config=lora_config(settings.lora) if settings.lora else None,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(recorder(settings, len(rows), place, stop))
    return trainer


def prompt_order(count: int, settings: Settings) -> list[int]:
    """Row numbers for all steps of the run, each epoch shuffled by seed and its own number.

    TRL's sampler draws an epoch's order from a generator that a resumed process starts anew, so
    that the prompts after an interruption would be others. One long epoch has no such memory.
    """
    needed = settings.steps * prompts_per_step(settings)
    order: list[int] = []
    for epoch in range(-(-needed // count)):
        rows = list(range(count))
        random.Random(f"{settings.seed}/{epoch}").shuffle(rows)
        order += rows
    return order[:needed]


def prompts_per_step(settings: Settings) -> int:
    return settings.batch * settings.gradient_accumulation // settings.generations


def lora_config(lora: Lora) -> Any:
    from peft import LoraConfig

    names = [name.strip() for name in lora.target_modules.split(",")]
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=names[0] if names == ["all-linear"] else names,
        task_type="CAUSAL_LM",
    )


def reward_of(judge: Callable[..., Any], rows: list[dict[str, Any]]) -> Callable[..., list[float]]:
    """The judge as TRL calls it: lists in, one reward for each answer out."""

    def reward(
        completions: list[Any], row: list[int], trainer_state: Any, **_rest: object
    ) -> list[float | None]:
        rewards: list[float | None] = []
        for completion, number in zip(completions, row, strict=True):
            metadata = dict(rows[number])
            truth = metadata.pop("ground_truth")
            metadata |= {"row": number, "step": trainer_state.global_step, "mode": "train"}
            value = judge(completion[0]["content"], truth, metadata)
            if value is not None:  # None: the judge could not tell, and the answer is left out
                value = float(value)
                if not 0.0 <= value <= 1.0:
                    raise ValueError(
                        f"the judge's reward for row {rows[number].get('id', number)!r}: "
                        f"expected a number from 0 to 1, found {value!r}"
                    )
            rewards.append(value)
        return rewards

    return reward


def recorder(settings: Settings, rows: int, place: Place, stop: StopRequest) -> Any:
    """The callback that writes metrics, marks checkpoints complete and hears SIGTERM."""
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):
        def on_step_end(self, _args: Any, _state: Any, control: Any, **_rest: object) -> Any:
            if stop.asked:
                control.should_save = control.should_training_stop = True
            return control

        def on_log(
            self, _args: Any, state: Any, _control: Any, logs: Any = None, **_rest: object
        ) -> None:
            if logs and "reward" in logs:
                epoch = state.global_step * prompts_per_step(settings) / rows
                point = {"step": state.global_step, "epoch": as_number(epoch)}
                point |= measured(logs, settings)
                point |= {"attempt": place.attempt, "at": now()}
                append_line(place.metrics, point)
                numbers = " ".join(f"{name}={point[name]}" for name in point if name != "at")
                print(numbers.replace("step=", "step ", 1), flush=True)

        def on_save(self, _args: Any, state: Any, _control: Any, **_rest: object) -> None:
            folder = place.checkpoints / f"checkpoint-{state.global_step}"
            mark_complete(folder, state.global_step, identity(settings))
            remove_old_checkpoints(place.checkpoints, settings.keep_checkpoints)
            print(f"saved {folder}", flush=True)

    return Recorder()


# --- metrics ------------------------------------------------------------------------------------


def measured(logs: Mapping[str, Any], settings: Settings) -> dict[str, float | str]:
    """TRL's names to ours; a value that was not measured is left out."""
    names = {
        "loss": "loss",
        "learning_rate": "lr",
        "grad_norm": "grad_norm",
        "reward": "reward",
        "reward_std": "reward_std",
        "kl": "kl",
        "entropy": "entropy",
        "completions/mean_length": "completion_length",
    }
    point = {
        ours: as_number(logs[theirs])
        for theirs, ours in names.items()
        if logs.get(theirs) is not None
    }
    length, seconds = logs.get("completions/mean_length"), logs.get("step_time")
    if length is not None and seconds:
        answers = settings.batch * settings.gradient_accumulation
        point["throughput"] = as_number(length * answers / seconds)
    return point


def as_number(value: float) -> float | str:
    """A number that JSON can hold; nan and inf as text."""
    value = float(value)
    if math.isfinite(value):
        return float(f"{value:.6g}")
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def append_line(path: Path, value: object) -> None:
    """One write for one line, so that a reader never sees half of it."""
    line = json.dumps(value, allow_nan=False) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def cut_torn_line(path: Path) -> None:
    """Drop what a killed machine left of a last line; readers only take lines with an end."""
    if path.is_file():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)


def read_metrics(path: Path) -> dict[int, dict[str, Any]]:
    """The points by step; of a repeated step the later one."""
    points = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {point["step"]: point for point in points}


# --- checkpoints --------------------------------------------------------------------------------


def identity(settings: Settings) -> dict[str, Any]:
    """What a checkpoint must share with the run that resumes from it."""
    return {
        "lora": dataclasses.asdict(settings.lora) if settings.lora else None,
        "quantization": settings.quantization,
    }


def mark_complete(folder: Path, step: int, same: dict[str, Any]) -> None:
    """Write the marker, after everything that it lists is on the disk."""
    (folder / MARKER).unlink(missing_ok=True)
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
            files[str(path.relative_to(folder))] = digest(path)
    write_json(
        folder / MARKER,
        {"schema_version": 1, "step": step, "files": files, "at": now(), **same},
    )


def newest_complete_checkpoint(root: Path, same: dict[str, Any]) -> Path | None:
    """The newest checkpoint that is whole; those passed over are named.

    Raises:
        Refused: it belongs to a run with another adapter or quantization.
    """
    for folder in list_checkpoints(root):
        if fault := damage(folder):
            print(f"skipped {folder}: {fault}", flush=True)
            continue
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        for name, value in same.items():
            if marker[name] != value:
                raise Refused(
                    f"checkpoint refused: {folder}: {name}: expected {value}, found "
                    f"{marker[name]}; start a new run, or restore the config"
                )
        return folder
    return None


def list_checkpoints(root: Path) -> list[Path]:
    """Newest first, whole or not."""
    found = [path for path in root.glob("checkpoint-*") if path.name.split("-", 1)[1].isdigit()]
    return sorted(found, key=lambda path: int(path.name.split("-")[1]), reverse=True)


def damage(folder: Path) -> str:
    """Why this is no checkpoint to resume from, or nothing."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        files = dict(marker["files"])
    except FileNotFoundError:
        return f"no {MARKER}: it was not finished"
    except (ValueError, KeyError, TypeError) as error:
        return f"{MARKER} is not readable: {error}"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (found := path.stat().st_size) != expected["bytes"]:
            return f"{name}: expected {expected['bytes']} bytes, found {found}"
        if (found := digest(path)["sha256"]) != expected["sha256"]:
            return f"{name}: expected sha256 {expected['sha256'][:12]}, found {found[:12]}"
    return ""


def remove_old_checkpoints(root: Path, keep: int) -> None:
    """Remove complete ones beyond `keep`; a damaged one is evidence and stays."""
    marked = [folder for folder in list_checkpoints(root) if (folder / MARKER).is_file()]
    for folder in marked[keep:]:
        (folder / MARKER).unlink()  # first, so that a half-removed one is never taken for whole
        shutil.rmtree(folder)


def digest(path: Path) -> dict[str, Any]:
    value = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            value.update(block)
    return {"bytes": path.stat().st_size, "sha256": value.hexdigest()}


# --- what remains -------------------------------------------------------------------------------


def save_model(trainer: Any, place: Place) -> None:
    """The model under its own name only when it is all there."""
    final, temporary = place.run_root / "model", place.run_root / ".model.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    trainer.save_model(str(temporary))
    (temporary / "training_args.bin").unlink(missing_ok=True)  # a pickle; summary.json says it all
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)


def summarise(
    settings: Settings, rows: list[dict[str, Any]], place: Place, trainer: Any
) -> dict[str, Any]:
    import torch

    points = read_metrics(place.metrics)
    rewards = [points[step]["reward"] for step in sorted(points) if "reward" in points[step]]
    parameters = list(trainer.model.parameters())
    return {
        "schema_version": 1,
        "status": "completed",
        "trainer": "grpo",
        "steps": trainer.state.global_step,
        "first_reward": rewards[0],
        "last_reward": rewards[-1],
        "best_reward": max((one for one in rewards if not isinstance(one, str)), default=None),
        "model_path": str(place.model),
        "source_dtype": source_dtype(place.model),
        "runtime_quantization": settings.quantization,
        "trainable_parameters": sum(one.numel() for one in parameters if one.requires_grad),
        "dataset": {"rows": len(rows), **digest(Path(settings.dataset))},
        "judge": digest(Path(settings.judge)),
        "config": dataclasses.asdict(settings),
        "attempt": place.attempt,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), **versions()},
        "finished_at": now(),
    }


def source_dtype(model: Path) -> str | None:
    """The type that the base model's weights are stored in, as its config says."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return config.get("dtype") or config.get("torch_dtype")


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def write_json(path: Path, value: object) -> None:
    """Under a temporary name, on the disk, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as handle:
        json.dump(value, handle, indent=2, sort_keys=True, allow_nan=False)
        handle.write("\n")
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main())
