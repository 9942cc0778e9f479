"""Catalogues of hardware and models: Kairos's own, and a file of the user's.

Profiles of measured engines take precedence over derived figures.
"""

from importlib.resources import as_file, files
from pathlib import Path

from kairos.capacity.engine_rates import EngineRates
from kairos.capacity.hardware import HardwareCatalogue
from kairos.core import EngineProfile, InvalidFile
from kairos.host import read_toml

_US = 1e-6
_OWN = ("accelerators.toml", "models.toml")


def load_catalogue(own: Path | None = None) -> HardwareCatalogue:
    """Return the catalogue of Kairos, with entries that a file adds or replaces.

    Raises:
        InvalidFile: the file is not a catalogue; the message says which field is wrong.
    """
    found = HardwareCatalogue()
    for name in _OWN:
        with as_file(files("kairos.capacity") / "catalogue" / name) as path:
            found = found.with_others(read_catalogue(path))
    return found if own is None else found.with_others(read_catalogue(own))


def read_catalogue(path: Path) -> HardwareCatalogue:
    """Read a catalogue.

    Raises:
        InvalidFile: it is not a catalogue; the message says which field is wrong.
    """
    found = read_toml(path, HardwareCatalogue)
    if problem := found.problem():
        raise InvalidFile(path, problem)
    return found


def measured_rates(profile: EngineProfile, devices: int = 1) -> EngineRates:
    """Return a profile, as written by `kairos calibrate`, in the planner's terms."""
    step = profile.step
    return EngineRates(
        rests_on=f"profile {profile.name}",
        measured=profile.measured,
        devices=devices,
        kv_tokens=profile.kv_tokens,
        max_num_seqs=profile.max_num_seqs,
        chunk_tokens=profile.max_num_batched_tokens,
        call_s=profile.call_us * _US,
        fixed_s=step.fixed_us * _US,
        weights_s=step.weights_us * _US,
        prefill_token_s=step.prefill_token_us * _US,
        prefill_seq_s=step.prefill_seq_us * _US,
        decode_seq_s=step.decode_seq_us * _US,
        kv_token_s=step.kv_token_us * _US,
        attention_s=step.attention_us * _US,
    )
