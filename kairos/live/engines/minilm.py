"""MiniLM, a small real model that embeds, as vLLM and as llama.cpp read it.

`make install` brings all-MiniLM-L6-v2 as it was published (a package with data alone: safetensors,
a WordPiece vocabulary, six layers), which is what vLLM reads. llama.cpp knows its architecture, so
what is done for it is to write the same numbers under other names; as its own converter has it, a
word's first piece begins with a mark in place of a space, where WordPiece marks the pieces that go
on.

`python -m kairos.live.engines.minilm FILE` writes it; `kairos.live.engines.llama` serves it, with
`--model FILE --embeds`.
"""

import argparse
import importlib.util
import re
import struct
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import msgspec
import numpy as np

from kairos.errors import SetupError
from kairos.live.engines.gguf import Value, write_gguf

PACKAGE = "all_minilm_l6_v2"
ALIAS = "minilm"
MAX_TOKENS = 512  # of a text
_NORMAL, _CONTROL = 1, 3  # token types of llama.cpp
_MEAN = 1  # a vector is the mean of those of its tokens

_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.+)")


def write_minilm(path: Path) -> None:
    """The installed model as a GGUF file of 91 MB, in a second.

    Raises:
        SetupError: it is not installed.
    """
    with ZipFile(_package() / "model.zip") as archive:
        config = msgspec.json.decode(archive.read("config.json"))
        tokenizer = msgspec.json.decode(archive.read("tokenizer.json"))
        tensors = read_safetensors(archive.read("model.safetensors"))
    named = {_name(name): tensor for name, tensor in tensors.items() if _is_kept(name)}
    write_gguf(path, _metadata(config, tokenizer["model"]["vocab"]), named)


def unpack_minilm(directory: Path) -> None:
    """The installed model as it was published, into a directory.

    Raises:
        SetupError: it is not installed.
    """
    with ZipFile(_package() / "model.zip") as archive:
        archive.extractall(directory)


def read_safetensors(content: bytes) -> dict[str, np.ndarray]:
    """Those of float32."""
    (length,) = struct.unpack("<Q", content[:8])
    header = msgspec.json.decode(content[8 : 8 + length])
    found = {}
    for name, each in header.items():
        if name != "__metadata__" and each["dtype"] == "F32":
            first, last = (8 + length + at for at in each["data_offsets"])
            found[name] = np.frombuffer(content[first:last], "<f4").reshape(each["shape"])
    return found


def _package() -> Path:
    """Looked up, never imported: what it would import in turn is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if (Path(folder) / "model.zip").is_file():
            return Path(folder)
    raise SetupError("the model that embeds (MiniLM) is not installed: run 'make install'")


def _metadata(config: dict[str, Any], vocabulary: dict[str, int]) -> dict[str, Value]:
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = [re.fullmatch(r"\[\w+\]", each) is not None for each in tokens]
    pieces = zip(tokens, special, strict=True)
    return {
        "general.architecture": "bert",
        "general.name": "all-MiniLM-L6-v2",
        "bert.context_length": MAX_TOKENS,
        "bert.embedding_length": config["hidden_size"],
        "bert.feed_forward_length": config["intermediate_size"],
        "bert.block_count": config["num_hidden_layers"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": float(config["layer_norm_eps"]),
        "bert.attention.causal": False,
        "bert.pooling_type": _MEAN,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": config["type_vocab_size"],
        "tokenizer.ggml.tokens": [t if is_special else _piece(t) for t, is_special in pieces],
        "tokenizer.ggml.token_type": [_CONTROL if each else _NORMAL for each in special],
        "tokenizer.ggml.bos_token_id": vocabulary["[CLS]"],
        "tokenizer.ggml.eos_token_id": vocabulary["[SEP]"],
        "tokenizer.ggml.seperator_token_id": vocabulary["[SEP]"],
        "tokenizer.ggml.unknown_token_id": vocabulary["[UNK]"],
        "tokenizer.ggml.padding_token_id": vocabulary["[PAD]"],
        "tokenizer.ggml.mask_token_id": vocabulary["[MASK]"],
    }


def _piece(token: str) -> str:
    return token[2:] if token.startswith("##") else f"\u2581{token}"


def _is_kept(name: str) -> bool:
    return not name.startswith("pooler.") and not name.endswith("position_ids")


def _name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if layer := _LAYER.fullmatch(stem):
        return f"blk.{layer[1]}.{_NAMES[layer[2]]}.{kind}"
    return f"{_NAMES[stem]}.{kind}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kairos.live.engines.minilm")
    parser.add_argument("file", type=Path, help="the GGUF file to write: 91 MB")
    try:
        write_minilm(parser.parse_args().file)
    except (SetupError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
