"""Settings of traces."""

import pytest

from kairos.core import SetupError
from kairos.settings import config


def load(tmp_path, text):
    path = tmp_path / "kairos.toml"
    path.write_text(text)
    return config.load_settings(path, {}, {}).telemetry


def test_without_them_nothing_is_traced(tmp_path):
    assert load(tmp_path, "") is None


def test_traces_go_to_the_collectors_path_for_them(tmp_path):
    told = load(tmp_path, '[telemetry]\notlp_endpoint = "http://collector:4318/"')
    assert told.traces_url == "http://collector:4318/v1/traces"
    assert (told.sample_ratio, told.service_name) == (1.0, "kairos")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('otlp_endpoint = "collector:4318"', "http:// or https://"),
        ('otlp_endpoint = "http://me:secret@collector"', "without a password"),
        ('otlp_endpoint = "http://c:1"\nsample_ratio = 2', "from 0 to 1"),
        ('otlp_endpoint = "http://c:1"\nservice_name = ""', "1 to 128"),
        ("sample_ratio = 1", "otlp_endpoint"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, line, said):
    with pytest.raises(SetupError, match=said):
        load(tmp_path, f"[telemetry]\n{line}")
