"""Forms come in any pieces, and say the same."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.request import FormReader, NoForm, PartBegan, PartContent, PartEnded, boundary_of

BOUNDARY = b"xyz"
_names = st.text("abc[]-_", min_size=1, max_size=8)
# What looks like a delimiter, or begins one, is the hard part.
_contents = st.lists(
    st.sampled_from([b"\r\n", b"\r\n--", b"--xy", b"\r", b"\n", b"xyz", b"a", b"--", b"\x00\xff"]),
    max_size=12,
).map(b"".join)
_parts = st.lists(st.tuples(_names, st.none() | _names, _contents), max_size=5)


def form(parts, boundary=BOUNDARY):
    body = b""
    for name, filename, content in parts:
        file = "" if filename is None else f'; filename="{filename}"'
        head = f'Content-Disposition: form-data; name="{name}"{file}\r\nContent-Type: a/b'
        body += b"--" + boundary + b"\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n"
    return body + b"--" + boundary + b"--\r\n"


def read(body, cuts=()):
    reader, found = FormReader(BOUNDARY), []
    places = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    for begin, end in pairwise(places):
        for event in reader.feed(body[begin:end]):
            match event:
                case PartBegan(name, filename):
                    found.append([name, filename, b"", False])
                case PartContent(data):
                    found[-1][2] += data
                case PartEnded():
                    found[-1][3] = True
    return reader, found


@given(_parts, st.lists(st.integers(0, 10_000), max_size=30))
def test_a_form_says_the_same_in_whatever_pieces_it_comes(parts, cuts):
    parts = [part for part in parts if b"\r\n--xyz" not in b"\r\n" + part[2] + b"\r\n--x"]
    reader, found = read(form(parts), cuts)

    assert reader.is_whole
    assert found == [[name, filename, content, True] for name, filename, content in parts]


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_whatever_comes_is_read_or_refused(body, cuts):
    try:
        reader, _ = read(b"--xyz\r\n" + body, cuts)
    except NoForm:
        return
    assert not reader.is_whole or b"--xyz--" in body


def test_a_form_that_breaks_off_is_not_whole():
    body = form([("file", "a", b"content")])
    for size in range(len(body) - len("--\r\n")):
        assert not read(body[:size])[0].is_whole


def test_heads_and_numbers_of_parts_are_bounded():
    with pytest.raises(NoForm, match=r"(?i)header"):
        read(b"--xyz\r\nA: " + b"b" * 10_000)
    with pytest.raises(NoForm, match=r"(?i)header"):
        read(b"--xyz\r\n" + b"A: b\r\n" * 9)
    with pytest.raises(NoForm, match="parts"):
        read(form([("a", None, b"")] * 17))
    with pytest.raises(NoForm, match="name"):
        read(b"--xyz\r\nA: b\r\n\r\nx\r\n--xyz--")
    with pytest.raises(NoForm):
        read(b"--xyzab\r\n")


def test_the_boundary_is_that_of_the_content_type():
    assert boundary_of("multipart/form-data; boundary=abc") == b"abc"
    assert boundary_of('Multipart/Form-Data; charset=utf-8; boundary="a b"') == b"a b"
    for other in ("application/json", "multipart/form-data", "multipart/mixed; boundary=a", ""):
        with pytest.raises(NoForm):
            boundary_of(other)
