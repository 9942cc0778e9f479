"""Makes the directory of a model without weights, which vLLM fills with random ones.

`.venv-vllm/bin/python scripts/tiny_model.py NAME DIRECTORY`, with a name of SHAPES. A Llama of that
shape with a tokenizer of its own, trained on Python's library: a second's work, so nobody keeps it.
"""

import json
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


class Shape(NamedTuple):
    """As in the model's config.json."""

    layers: int
    hidden: int
    vocabulary: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int = 64
    context: int = 32768
    rope_theta: float = 10000.0
    tied: bool = True  # input and output embeddings are one


SHAPES = {
    "tiny": Shape(2, 256, 4096, 512, 4, 2),
    "small": Shape(4, 512, 8192, 1024, 8, 4),
    "mid": Shape(8, 1024, 32000, 2048, 16, 8),  # here the engine takes the time, not the API's
    "large": Shape(
        16, 1280, 32000, 2560, 20, 10
    ),  # process, and here Kairos and clients are little
    "llama3-8b": Shape(
        32, 4096, 128256, 14336, 32, 8, 128, 8192, 500000.0, tied=False
    ),  # for a GPU
}
TEXTS = 300  # files to train the tokenizer on
BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SPECIAL = [BOS, EOS, PAD, "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer(vocabulary: int) -> Tokenizer:
    """Pairs of bytes, merged as often as the vocabulary has room for, or the texts have pairs. The
    rest are words that no text has: whatever a model of random weights says has letters."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:TEXTS]
    made.train([str(path) for path in texts], trainer)
    told = json.loads(made.to_str())
    words = told["model"]["vocab"]
    words |= {f"word{number:06}": number for number in range(len(words), vocabulary)}
    return Tokenizer.from_str(json.dumps(told))


def configuration(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": shape.context,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": 1e-5,
        "bos_token_id": SPECIAL.index(BOS),
        "eos_token_id": SPECIAL.index(EOS),
        "pad_token_id": SPECIAL.index(PAD),
        "torch_dtype": "bfloat16",
    }


def write(name: str, directory: Path) -> None:
    shape = SHAPES[name]
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    files = {
        "config.json": configuration(shape),
        "generation_config.json": {
            f"{kind}_id": SPECIAL.index(token) for kind, token in special.items()
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": shape.context,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
            **special,
        },
        "special_tokens_map.json": special,
    }
    directory.mkdir()
    tokenizer(shape.vocabulary).save(str(directory / "tokenizer.json"))
    for file, content in files.items():
        (directory / file).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
