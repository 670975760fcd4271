"""Makes the tiny base model of this example, offline, in about a second.

    python make_model.py                 # writes ./model, does nothing when it is there and whole
    python make_model.py --out DIR       # somewhere else
    python make_model.py --force         # make it again

argv    --out DIR (default: `model` beside this file), --force
reads   nothing; needs numpy, safetensors and tokenizers (all come with transformers)
writes  DIR: config.json generation_config.json model.safetensors tokenizer.json
        tokenizer_config.json, 0.5 MB; under a temporary name first, then renamed, so that a folder
        called DIR is always whole
exit    0; 1 when DIR holds something else than this model

A Qwen2 of 2 layers (hidden 64, heads of 32, tied embeddings) with random weights from a fixed seed,
and a byte-level BPE of 400 tokens that keeps every digit a token of its own. It knows nothing:
what it is seen to learn, it learned in the run. Same versions, same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

# One thread: the merges of the tokenizer must not depend on who counted first.
os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SEED = 20260101
VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP = 400, 64, 2, 2, 1, 32, 160
INIT_STD = 0.02
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

CORPUS = [
    "system user assistant You are a helper that answers with digits only.",
    "Write a number. Give me a number between zero and nine hundred ninety nine, please.",
    "How many apples are in the basket? How many days are in a year? Count the letters in a word.",
    "one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty",
    "What is the sum of seven and eight? The answer is a number and nothing else.",
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "Training a model means changing its weights a little, again and again, until it does better.",
    "A reward says how good an answer was; a higher reward makes the answer more likely.",
]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "model")
    parser.add_argument("--force", action="store_true", help="make it again")
    args = parser.parse_args(argv)
    out: Path = args.out.absolute()

    if out.exists() and not args.force:
        missing = [name for name in FILES if not (out / name).is_file()]
        if missing:
            print(
                f"error: not this example's model: {out}: expected {', '.join(FILES)}, "
                f"found no {', '.join(missing)}; remove the folder, or give --force",
                file=sys.stderr,
            )
            return 1
        print(f"{out} is there already")
        return 0

    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        parameters = write_weights(temporary)
        write_tokenizer(temporary)
        write_configs(temporary)
        if out.exists():
            shutil.rmtree(out)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"made {out}: {parameters} parameters, {VOCAB} tokens")
    return 0


def write_weights(folder: Path) -> int:
    """Random weights under the names that Qwen2ForCausalLM expects; returns how many numbers."""
    rng = np.random.default_rng(SEED)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * INIT_STD).astype(np.float32)

    tensors = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN)}
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{layer}.self_attn.{name}_proj.weight"] = normal(rows * HEAD_DIM, HIDDEN)
            tensors[f"{layer}.self_attn.{name}_proj.bias"] = np.zeros(rows * HEAD_DIM, np.float32)
        tensors[f"{layer}.self_attn.o_proj.weight"] = normal(HIDDEN, HEADS * HEAD_DIM)
        tensors[f"{layer}.mlp.gate_proj.weight"] = normal(MLP, HIDDEN)
        tensors[f"{layer}.mlp.up_proj.weight"] = normal(MLP, HIDDEN)
        tensors[f"{layer}.mlp.down_proj.weight"] = normal(HIDDEN, MLP)
        tensors[f"{layer}.input_layernorm.weight"] = np.ones(HIDDEN, np.float32)
        tensors[f"{layer}.post_attention_layernorm.weight"] = np.ones(HIDDEN, np.float32)
    tensors["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(tensor.size for tensor in tensors.values())


def write_tokenizer(folder: Path) -> None:
    """Byte-level BPE: every text can be encoded, every digit is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if tokenizer.get_vocab_size() != VOCAB:
        raise RuntimeError(f"expected {VOCAB} tokens, the corpus gave {tokenizer.get_vocab_size()}")
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "padding_side": "left",
            "model_max_length": 256,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def write_configs(folder: Path) -> None:
    end, pad = SPECIAL.index("<|im_end|>"), SPECIAL.index("<|endoftext|>")
    write_json(
        folder / "config.json",
        {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": VOCAB,
            "hidden_size": HIDDEN,
            "intermediate_size": MLP,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "use_cache": True,
            "use_sliding_window": False,
            "dtype": "float32",
            "bos_token_id": None,
            "eos_token_id": end,
            "pad_token_id": pad,
        },
    )
    write_json(
        folder / "generation_config.json",
        {"do_sample": True, "eos_token_id": end, "pad_token_id": pad},
    )


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
