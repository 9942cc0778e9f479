"""The model that embeds, as llama.cpp reads it."""

import struct

import numpy as np
import pytest

from kairos.errors import SetupError
from kairos.live.engines import minilm
from kairos.live.engines.gguf import write_gguf


class Reader:
    """Of GGUF, as its specification says."""

    def __init__(self, content):
        self.content, self.at = content, 0

    def read(self, form):
        values = struct.unpack_from(f"<{form}", self.content, self.at)
        self.at += struct.calcsize(f"<{form}")
        return values[0] if len(values) == 1 else values

    def string(self):
        length = self.read("Q")
        self.at += length
        return self.content[self.at - length : self.at].decode()

    def value(self, kind=None):
        kind = self.read("I") if kind is None else kind
        if kind == 9:
            of, count = self.read("I"), self.read("Q")
            return [self.value(of) for _ in range(count)]
        return self.string() if kind == 8 else self.read({4: "I", 5: "i", 6: "f", 7: "?"}[kind])


def read_gguf(content):
    reader = Reader(content)
    assert content[:4] == b"GGUF"
    reader.at = 4
    version, tensors, values = reader.read("I"), reader.read("Q"), reader.read("Q")
    assert version == 3
    metadata = {reader.string(): reader.value() for _ in range(values)}
    places = {}
    for _ in range(tensors):
        name, dimensions = reader.string(), reader.read("I")
        shape = tuple(reader.read("Q") for _ in range(dimensions))
        assert reader.read("I") == 0  # float32
        places[name] = (shape, reader.read("Q"))
    begins = -(-reader.at // 32) * 32
    found = {}
    for name, (shape, at) in places.items():
        assert at % 32 == 0
        flat = np.frombuffer(content, "<f4", int(np.prod(shape)), begins + at)
        found[name] = flat.reshape(shape[::-1])
    return metadata, found


def test_what_is_written_is_what_the_format_says(tmp_path):
    metadata = {"a": 3, "b": 0.5, "c": "text", "d": True, "e": ["x", "yy"], "f": [1, -2]}
    tensors = {
        "matrix": np.arange(6, dtype="f4").reshape(2, 3),
        "row": np.array([7.0, 8.0], dtype="f4"),
    }
    write_gguf(tmp_path / "m.gguf", metadata, tensors)

    content = (tmp_path / "m.gguf").read_bytes()
    read_metadata, read_tensors = read_gguf(content)
    assert read_metadata == metadata
    assert list(read_tensors) == ["matrix", "row"]
    for name, tensor in tensors.items():
        assert (read_tensors[name] == tensor).all()
    assert len(content) % 32 == 0


def test_the_installed_model_has_its_numbers_under_llama_cpp_s_names(tmp_path):
    minilm.write_minilm(tmp_path / "minilm.gguf")

    metadata, tensors = read_gguf((tmp_path / "minilm.gguf").read_bytes())
    assert metadata["general.architecture"] == "bert"
    tokens = metadata["tokenizer.ggml.tokens"]
    assert tokens[metadata["tokenizer.ggml.bos_token_id"]] == "[CLS]"
    assert "\u2581house" in tokens
    assert "ing" in tokens  # that goes on a word
    assert len(tokens) == tensors["token_embd.weight"].shape[0] == 30_522
    layers = {name.split(".")[1] for name in tensors if name.startswith("blk.")}
    assert layers == set("012345")
    assert tensors["blk.0.ffn_up.weight"].shape == (1536, 384)
    assert not any("pooler" in name for name in tensors)


def test_the_command_writes_it_or_says_what_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["minilm", str(tmp_path / "none" / "minilm.gguf")])
    with pytest.raises(SystemExit, match=r"error: .*No such file"):
        minilm.main()


def test_where_it_is_not_installed_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    with pytest.raises(SetupError, match="make install"):
        minilm.write_minilm(tmp_path / "minilm.gguf")
