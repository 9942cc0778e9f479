"""Access to the operators' port, decided by the path as it was sent."""

import pytest

from kairos.gateway.operators.operators import Needed, needed

OPEN, SEES, PAGE = Needed(None), Needed("viewer"), Needed("viewer", is_page=True)
ASKS, ACTS = Needed("viewer", is_from_page=True), Needed("admin", is_from_page=True)
CHANGES = Needed("admin")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/health", OPEN),
        ("POST", "/health", OPEN),
        ("GET", "/health/", SEES),
        ("GET", "/%68ealth", SEES),
        ("POST", "/%68ealth", CHANGES),
        ("GET", "//health", SEES),
        ("GET", "/HEALTH", SEES),
        ("GET", "/health/../admin/instances", SEES),
        ("POST", "/health/../admin/instances", CHANGES),
        ("GET", "/metrics", SEES),
        ("GET", "/admin/instances", SEES),
        ("POST", "/admin/instances", CHANGES),
        ("DELETE", "/admin/instances/a:1", CHANGES),
        ("TRACE", "/admin/instances", CHANGES),
        ("GET", "/ui", PAGE),
        ("GET", "/ui/data/now", PAGE),
        ("GET", "/uix", SEES),
        ("GET", "/%75i", SEES),
        ("POST", "/ui/ask/gained", ASKS),
        ("POST", "/ui/act/drain", ACTS),
        ("POST", "/ui%2fask/gained", CHANGES),
        ("POST", "/ui/%61sk/gained", CHANGES),
        ("POST", "/ui/asked", CHANGES),
        ("POST", "//ui/ask/gained", CHANGES),
        ("DELETE", "/ui/ask/gained", CHANGES),
        ("POST", "/ui/act%2fdrain", CHANGES),
        ("", "", CHANGES),
    ],
)
def test_a_path_in_another_spelling_has_the_strictest_rule(method, path, expected):
    assert needed(method, path.encode()) == expected
