"""vLLM for a GPU machine that reaches no package index: gathered elsewhere, carried in parts.

    python3 scripts/gpu_packages.py gather     where a package index is reached: makes .gpu/part-...
    python3 scripts/gpu_packages.py install    there, after each part that came, until all are there

`gather` takes what requirements-gpu.lock names, built for that machine, leaves out what a Llama on
a Hopper GPU does without, and compresses the rest into one archive. The archive is cut into parts
that fit what can be carried at once; .gpu/parts.json lists them with their hashes, and travels with
each. The same packages make the same parts.

`install` keeps the parts that have come, so that the next may take their place. With the last of
them it unpacks all into a virtual environment that also sees the packages of the Python it is run
by, PyTorch among them. What is whole is left alone the next time.

Needs nothing but Python: 3.11 or newer with pip to gather, that of PYTHON to install.
"""

import argparse
import hashlib
import json
import shutil
import site
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
LOCK = CHECKOUT / "requirements-gpu.lock"
PARTS = CHECKOUT / ".gpu"
INTO = Path.home() / ".kairos-gpu"
PYTHON = "3.12"
GLIBC = range(5, 40)  # 2.N: the names that builds for it may have
MIB = 1 << 20
PART_MIB = 50  # what travels at once may be limited, and the checkout has 12 MiB
PRESET = 6  # of xz; more takes twice as long, and saves a fiftieth
MANIFEST = "parts.json"
LEFT_OUT = (
    "bin",
    "mistral_common/data",
    "vllm/_flashmla_*.so",  # other attention than a Llama's
    "vllm/_moe_C_stable_libtorch.abi3.so",  # mixtures of experts
    "vllm/_qutlass_C.abi3.so",  # quantized weights
    "vllm/third_party/deep_gemm",
    "vllm/third_party/fmha_sm100",  # another GPU's
    "vllm/vllm-rs",  # another HTTP server
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",  # a Hopper GPU has the third version
)
# What runs there, as far as it can be tried without a model.
CHECK = """
import torch
assert torch.cuda.is_available(), "PyTorch finds no GPU"
import vllm, vllm._C_stable_libtorch, vllm.vllm_flash_attn._vllm_fa3_C
import vllm.entrypoints.openai.api_server, experiments.gpu
print(f"vLLM {vllm.__version__}, PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
"""


@dataclass(frozen=True)
class Part:
    name: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What the parts were made of, and which there are, in their order."""

    made_of: str  # a hash: of all that decides which bytes they have
    python: str
    parts: list[Part]

    def write(self, directory: Path) -> None:
        (directory / MANIFEST).write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, directory: Path) -> "Manifest | None":
        """None: there is none."""
        try:
            told = json.loads((directory / MANIFEST).read_text())
        except FileNotFoundError:
            return None
        return cls(told["made_of"], told["python"], [Part(**each) for each in told["parts"]])


def gather(into: Path, part_bytes: int) -> Manifest:
    """Make the parts, unless they are there."""
    known = Manifest.read(into)
    made_of = _made_of(part_bytes)
    if known and known.made_of == made_of and not missing(known, into):
        return known
    into.mkdir(exist_ok=True)
    for old in into.glob("part-*"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=into) as scratch:
        tree, archive = Path(scratch) / "tree", Path(scratch) / "archive"
        _say("packages from requirements-gpu.lock")
        _download(tree)
        leave_out(tree)
        _say("compressing (two minutes)")
        pack(tree, archive)
        found = Manifest(made_of, PYTHON, list(cut(archive, into, part_bytes)))
    found.write(into)
    return found


def _made_of(part_bytes: int) -> str:
    said = f"{LOCK.read_text()} {LEFT_OUT} {PYTHON} {PRESET} {part_bytes}"
    return hashlib.sha256(said.encode()).hexdigest()


def _download(tree: Path) -> None:
    """Install for that machine, not this one."""
    platforms = ["manylinux1_x86_64", "manylinux2014_x86_64"]
    platforms += [f"manylinux_2_{minor}_x86_64" for minor in GLIBC]
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"),
        *("--require-hashes", "--no-deps", "--only-binary=:all:", "--no-compile"),
        *("--implementation=cp", f"--python-version={PYTHON}"),
        *(f"--platform={each}" for each in platforms),
        *(f"--target={tree}", f"--requirement={LOCK}"),
    ]
    if subprocess.run(command, check=False).returncode:  # noqa: S603 (ours)
        sys.exit("gpu_packages: packages could not be had; is a package index reachable?")


def leave_out(tree: Path) -> None:
    """Remove what is not needed. A pattern that nothing has is a sign of another version."""
    for pattern in LEFT_OUT:
        found = list(tree.glob(pattern))
        if not found:
            sys.exit(f"gpu_packages: no package has {pattern}: look at LEFT_OUT anew")
        for each in found:
            shutil.rmtree(each) if each.is_dir() else each.unlink()


def pack(tree: Path, archive: Path) -> None:
    """The same tree makes the same bytes."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(archive, "w:xz", preset=PRESET) as packed:
        for path in sorted(tree.rglob("*")):
            packed.add(path, path.relative_to(tree).as_posix(), recursive=False, filter=plain)


def cut(archive: Path, into: Path, part_bytes: int) -> Iterator[Part]:
    with archive.open("rb") as file:
        number = 0
        while content := file.read(part_bytes):
            number += 1
            path = into / f"part-{number:02}"
            path.write_bytes(content)
            yield part(path)


def part(path: Path) -> Part:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Part(path.name, path.stat().st_size, digest)


def missing(manifest: Manifest, directory: Path) -> list[str]:
    """The names of parts that are not there, or are there with other bytes."""
    return [
        each.name
        for each in manifest.parts
        if not (directory / each.name).is_file() or part(directory / each.name) != each
    ]


def join(paths: Iterable[Path], archive: Path) -> None:
    with archive.open("wb") as file:
        for path in paths:
            with path.open("rb") as content:
                shutil.copyfileobj(content, file)


def install(parts: Path, into: Path, check: str = CHECK) -> None:
    """Keep what has come; make INTO/venv when all is there, and say where it is."""
    manifest = Manifest.read(parts)
    if manifest is None:
        sys.exit(f"gpu_packages: no {MANIFEST} in {parts}: bring it with each part")
    environment, stamp = into / "venv", into / "venv" / ".installed"
    if stamp.is_file() and stamp.read_text() == manifest.made_of:
        _say(f"{environment} is whole")
        return
    kept = into / "parts"
    kept.mkdir(parents=True, exist_ok=True)
    for name in missing(manifest, kept):
        if (parts / name).is_file():
            shutil.copyfile(parts / name, kept / name)
    if names := missing(manifest, kept):
        sys.exit(
            f"gpu_packages: {len(names)} of {len(manifest.parts)} parts still to come: {names}"
        )
    unpack([kept / each.name for each in manifest.parts], environment, manifest.python)
    _say(f"trying what is in {environment}")
    command = [environment / "bin" / "python", "-c", check]
    tried = subprocess.run(command, check=False, cwd=CHECKOUT)  # noqa: S603
    if tried.returncode:
        sys.exit("gpu_packages: that cannot run on this machine, see above")
    stamp.write_text(manifest.made_of)


def unpack(paths: list[Path], environment: Path, python: str) -> None:
    """Make the virtual environment anew. Its packages come before those of this Python."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != python:
        sys.exit(f"gpu_packages: the packages are for Python {python}, this is {here}")
    _say(f"unpacking into {environment}")
    venv.EnvBuilder(clear=True, symlinks=True, with_pip=False).create(environment)
    packages = environment / "lib" / f"python{here}" / "site-packages"
    with tempfile.TemporaryDirectory(dir=environment) as scratch:
        archive = Path(scratch) / "archive"
        join(paths, archive)
        with tarfile.open(archive, "r:xz") as packed:
            if hasattr(tarfile, "data_filter"):  # Debian 12's Python has none
                packed.extraction_filter = tarfile.data_filter
            packed.extractall(packages)  # noqa: S202 - of parts whose hashes were compared
    beside = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (packages / "zz-beside.pth").write_text("\n".join([*beside, ""]))


def _say(line: str) -> None:
    print(f"gpu_packages: {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="vLLM for a GPU machine without a network.")
    commands = parser.add_subparsers(dest="what", required=True)
    command = commands.add_parser("gather", help="make the parts")
    command.add_argument("--part-mib", type=int, default=PART_MIB, help=f"of each [{PART_MIB}]")
    commands.add_parser(
        "install", help="keep the parts that came; with the last, install"
    ).add_argument(
        "--into", type=Path, default=INTO, help=f"where parts and the environment go [{INTO}]"
    )
    options = parser.parse_args()
    began_at = time.monotonic()
    if options.what == "gather":
        made = gather(PARTS, options.part_mib * MIB)
        for each in made.parts:
            _say(f"{PARTS / each.name}  {each.size / MIB:.1f} MiB  {each.sha256[:12]}")
    else:
        install(PARTS, options.into)
    _say(f"done in {time.monotonic() - began_at:.0f} s")


if __name__ == "__main__":
    main()
