"""`make profile`: which part of a call's way code belongs to."""

import importlib.util

from bench import parts, profile_page


def test_every_module_that_is_named_is_there():
    for module in (*parts.MODULES, *parts.CHOOSES):
        if module.startswith("kairos."):
            assert importlib.util.find_spec(module) is not None, module


def test_the_page_that_is_kept_is_what_its_rows_say():
    if profile_page.PAGE.exists():
        assert profile_page.PAGE.read_text() == profile_page.page(
            profile_page.read(profile_page.ROWS)
        )
