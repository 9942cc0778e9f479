"""`python -m tests.fuzz.one TARGET ...`: libFuzzer on one target; what follows are its options.

To put what was found into the kept corpus, smallest inputs first and nothing that adds nothing:
`python -m tests.fuzz.one TARGET -merge=1 tests/fuzz/corpus/TARGET .fuzz/corpus/TARGET`.
"""

import sys

import atheris

from tests.fuzz.mutation import mutated

with atheris.instrument_imports(include=["kairos"]):
    from tests.fuzz.targets import TARGETS


def _mutated(data: bytes, max_size: int, seed: int) -> bytes:
    return mutated(data, max_size, seed, atheris.Mutate)  # which `Setup` replaces


if __name__ == "__main__":
    target, *options = sys.argv[1:]
    itself = f"{sys.executable} -m tests.fuzz.one {target}"  # libFuzzer starts it to merge
    atheris.Setup([itself, *options], TARGETS[target], custom_mutator=_mutated)
    atheris.Fuzz()
