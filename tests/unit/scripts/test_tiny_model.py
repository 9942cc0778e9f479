"""Models of random weights: what vLLM is told of them."""

import json

from scripts import tiny_model
from tests.unit.sim.engine.test_profiles import LLAMA3_8B


def test_a_model_for_a_gpu_has_the_shape_of_llama_3_8b():
    told = tiny_model.configuration(tiny_model.SHAPES["llama3-8b"])
    assert told["num_hidden_layers"] == LLAMA3_8B.layers
    assert told["hidden_size"] == LLAMA3_8B.hidden
    assert told["num_attention_heads"] == LLAMA3_8B.heads
    assert told["num_key_value_heads"] == LLAMA3_8B.kv_heads
    assert told["head_dim"] * LLAMA3_8B.heads == LLAMA3_8B.hidden
    assert told["intermediate_size"] == LLAMA3_8B.mlp
    assert told["vocab_size"] == LLAMA3_8B.vocabulary
    assert not told["tie_word_embeddings"]


def test_all_that_a_model_may_say_is_text(monkeypatch, tmp_path):
    """Even where the texts that a tokenizer is trained on have too few words."""
    monkeypatch.setattr(tiny_model, "TEXTS", 1)
    larger = tiny_model.SHAPES["tiny"]._replace(vocabulary=9000)
    monkeypatch.setitem(tiny_model.SHAPES, "tiny", larger)
    tiny_model.write("tiny", tmp_path / "model")
    told = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    assert len(told["model"]["vocab"]) == 9000
    made = tiny_model.Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    assert made.get_vocab_size() == 9000
    specials = len(tiny_model.SPECIAL)
    assert all(made.decode([token]) for token in range(specials, 9000))
    assert made.decode(made.encode("def main(): pass").ids) == "def main(): pass"
