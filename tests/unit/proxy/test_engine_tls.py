"""Contexts for TLS to engines."""

import shutil
import ssl

import pytest

from kairos.host import fresh_context
from kairos.proxy import (
    EngineClient,
    EngineContexts,
    TlsFilesOfNoUse,
    Upstream,
    connections,
    why_not,
)
from kairos.settings import TlsFiles
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def test_engines_with_the_same_files_share_a_context(authority):
    contexts = EngineContexts()
    first = contexts.of(TlsFiles(ca=authority.ca))
    assert contexts.of(TlsFiles(ca=authority.ca)) is first
    assert contexts.of(TlsFiles()) is not first


def test_files_of_no_use_are_tried_again_with_the_next_connection(authority, tmp_path):
    contexts, files = EngineContexts(), TlsFiles(ca=str(tmp_path / "late.pem"))
    for _ in range(2):
        with pytest.raises(TlsFilesOfNoUse, match=r"late\.pem: cannot be read"):
            contexts.of(files)
    shutil.copy(authority.ca, files.ca)
    assert contexts.of(files).get_ca_certs()


def test_no_more_contexts_are_kept_than_there_may_be_engines(authority, monkeypatch):
    monkeypatch.setattr(connections, "MAX_ENGINES", 2)
    contexts = EngineContexts()
    for number in range(5):
        contexts.of(TlsFiles(ca=shutil.copy(authority.ca, f"{authority.ca}.{number}")))
    assert len(contexts._fresh) <= 2


def test_an_engine_has_tls_by_its_url_alone(authority):
    files = TlsFiles(ca=authority.ca)
    assert Upstream("e", "http://a:1", tls=files).origin == (None, "a", 1)
    assert Upstream("e", "https://a", tls=files).origin == (files, "a", 443)
    assert Upstream("e", "https://a").tls == TlsFiles()


def test_files_are_read_when_engines_are_named_not_with_the_first_call(authority, monkeypatch):
    monkeypatch.setattr(fresh_context, "LOOK_S", 0.0)
    contexts = EngineContexts()
    client = EngineClient(contexts=contexts)
    files, broken = TlsFiles(ca=authority.ca), TlsFiles(ca="none.pem")
    client.use([Upstream("a", "https://a", tls=files), Upstream("b", "https://b", tls=broken)])
    files.paths[0].write_text("")
    assert contexts.of(files).get_ca_certs()
    assert sorted(client.upstreams) == ["a", "b"]


def test_what_failed_is_said_in_words():
    refused = ssl.SSLCertVerificationError()
    refused.verify_message = "self-signed certificate"
    assert why_not(refused) == "its certificate is not accepted: self-signed certificate"
    assert "unlike anything" in why_not(ssl.SSLError(1, "unlike anything"))
