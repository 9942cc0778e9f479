"""Tables of figures are what their rows say. Whether these are of today's code, `make bench-fresh`
tells."""

from bench import rows, tables


def test_the_documentation_has_the_figures_that_were_measured():
    assert tables.edited(tables.documents_of(tables.ROOT), rows.read()) == []
