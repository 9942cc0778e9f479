import importlib
import json
import shutil
import sys
import sysconfig

import pytest

from kairos.host import compiled_brain
from kairos.host.compiled_brain import files

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


@pytest.fixture
def folder(tmp_path):
    """As the script leaves it, of two modules."""
    for name, source in (("one.py", "A = 1\n"), ("room/two.py", "B = 2\n")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    folder = tmp_path / "compiled"
    (folder / "kairos" / "room").mkdir(parents=True)
    for name in ("kairos/one", "kairos/room/two", "kairos_brain__mypyc"):
        (folder / f"{name}{SUFFIX}").touch()
    sources = ["one.py", "room/two.py"]
    digest = compiled_brain.digest(tmp_path, sources)
    manifest = {"digest": digest, "sources": sources}
    (folder / compiled_brain.MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_modules_are_found_by_their_names(folder):
    assert files(folder) == {
        "kairos.one": folder / f"kairos/one{SUFFIX}",
        "kairos.room.two": folder / f"kairos/room/two{SUFFIX}",
        "kairos_brain__mypyc": folder / f"kairos_brain__mypyc{SUFFIX}",
    }


@pytest.mark.parametrize("name", ["one.py", "room/two.py"])
def test_none_where_one_source_has_changed(folder, name):
    path = folder.parent / name
    before = path.read_text()
    path.write_text(before + "\n")
    assert files(folder) == {}

    path.write_text(before)
    assert len(files(folder)) == 3


def test_none_where_a_source_has_gone(folder):
    (folder.parent / "one.py").unlink()
    assert files(folder) == {}


@pytest.mark.parametrize("manifest", ["", "{", "[]", "{}", '{"sources": 1, "digest": 2}'])
def test_none_by_a_manifest_that_is_broken(folder, manifest):
    (folder / compiled_brain.MANIFEST).write_text(manifest)
    assert files(folder) == {}


def test_none_where_nothing_was_compiled_or_for_another_python(folder):
    assert files(folder.parent / "nowhere") == {}
    for each in folder.rglob(f"*{SUFFIX}"):
        each.rename(str(each).removesuffix(SUFFIX) + ".cpython-399-other.so")
    assert files(folder) == {}


def test_none_if_the_source_is_asked_for(folder, monkeypatch):
    monkeypatch.setattr(compiled_brain, "FOLDER", folder)
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setenv(compiled_brain.INTERPRETED, "1")
    assert not compiled_brain.install_compiled_brain()
    assert sys.meta_path == []

    monkeypatch.setenv(compiled_brain.INTERPRETED, "")
    assert compiled_brain.install_compiled_brain()
    [finder] = sys.meta_path
    assert finder.find_spec("kairos.one").origin == str(folder / f"kairos/one{SUFFIX}")


def test_what_is_found_is_imported_in_place_of_the_source(folder, monkeypatch):
    """An extension module of Python's own stands for one that was compiled."""
    import _struct

    if not getattr(_struct, "__file__", None):
        pytest.skip("this Python has its extension modules built in")
    place = folder / f"_struct{SUFFIX}"
    shutil.copy(_struct.__file__, place)
    finder = compiled_brain.CompiledModules({"_struct": place})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "_struct")

    assert importlib.import_module("_struct").__file__ == str(place)
    assert finder.find_spec("kairos.somewhere") is None
