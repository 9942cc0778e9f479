"""What a vLLM without a GPU is told of the processor that it runs on."""

import pytest

from kairos.engines import vllm


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("flags\t\t: fpu sse2 avx2 bmi2\n", False),
        ("flags\t\t: fpu avx2 avx512f avx512bw\n", True),
        ("Features\t: fp asimd bf16\n", True),  # no x86
    ],
)
def test_avx512_is_read_from_the_kernel(monkeypatch, tmp_path, text, has):
    told = tmp_path / "cpuinfo"
    told.write_text(f"processor\t: 0\n{text}bogomips\t: 1\n")
    monkeypatch.setattr(vllm, "CPU_INFO", told)
    assert vllm.has_avx512() is has


def test_without_a_kernel_that_tells_nothing_is_changed(monkeypatch, tmp_path):
    monkeypatch.setattr(vllm, "CPU_INFO", tmp_path / "none")
    assert vllm.has_avx512()
