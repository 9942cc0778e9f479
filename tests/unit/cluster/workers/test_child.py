from kairos.cluster.workers.child import _told
from kairos.cluster.workers.messages import Changed
from kairos.cluster.workers.supervisor import _encode
from kairos.settings import Settings, read_keys

KEY = f'[[key]]\nsha256 = "{"0123456789abcdef" * 4}"\ntenant = "acme"\n'


def test_workers_are_told_of_keys_that_expire(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(f"{KEY}expires = 9999-01-01T11:59:59.999999+12:00\ncreated = 2000-01-01\n")
    path.chmod(0o600)
    keys = read_keys(path)
    (told,) = _told.decode(_encode(Changed(Settings(key=keys)))).settings.key
    assert told == keys[0]
    assert told.expires_at == keys[0].expires_at
