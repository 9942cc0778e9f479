"""Makes the directory of a small model without weights, which vLLM fills with random ones.

`.venv-vllm/bin/python scripts/tiny_model.py NAME DIRECTORY`, with a name of SIZES. A Llama of that
size with a tokenizer of its own, trained on Python's library: a second's work, so nobody keeps it.
"""

import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SIZES = {  # layers, hidden size, vocabulary
    "tiny": (2, 256, 4096),
    "small": (4, 512, 8192),
    "mid": (8, 1024, 32000),  # here the engine takes the time, not the API's process,
    "large": (16, 1280, 32000),  # and here what Kairos and its clients take is little beside it
}
HEAD_SIZE = 64
CONTEXT = 32768
TEXTS = 300  # files to train the tokenizer on
BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SPECIAL = [BOS, EOS, PAD, "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer(vocabulary: int) -> Tokenizer:
    """Pairs of bytes, merged as often as the vocabulary has room for."""
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
    return made


def configuration(layers: int, hidden: int, vocabulary: int) -> dict[str, object]:
    heads = hidden // HEAD_SIZE
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "bos_token_id": SPECIAL.index(BOS),
        "eos_token_id": SPECIAL.index(EOS),
        "pad_token_id": SPECIAL.index(PAD),
        "torch_dtype": "bfloat16",
    }


def write(name: str, directory: Path) -> None:
    layers, hidden, vocabulary = SIZES[name]
    texts = tokenizer(vocabulary)
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    files = {
        "config.json": configuration(layers, hidden, texts.get_vocab_size()),
        "generation_config.json": {
            f"{kind}_id": SPECIAL.index(token) for kind, token in special.items()
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
            **special,
        },
        "special_tokens_map.json": special,
    }
    directory.mkdir()
    texts.save(str(directory / "tokenizer.json"))
    for file, content in files.items():
        (directory / file).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
