"""No text of Kairos sends a reader to a package of another project.

`kairos` on the Python Package Index is not this Kairos: an extra of it, or its name alone, must not
be installed from there. What an option needs is named as the package that it is.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FROM_INDEX = re.compile(r"kairos\\*\[|pip install (?:-\S+ )*['\"]?kairos(?![-_/.\w])")
PAGES = [
    *ROOT.glob("*.md"),
    *(
        page
        for folder in ("docs", "deploy", "client", "examples")
        for page in (ROOT / folder).rglob("*.md")
    ),
]
MODULES = [*(ROOT / "kairos").rglob("*.py"), *(ROOT / "client").rglob("*.py")]


def texts(path):
    if path.suffix == ".md":
        return [path.read_text()]
    return [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_no_page_and_no_message_names_a_package_of_another_project():
    assert len(PAGES) > 40
    named = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in (*PAGES, *MODULES)
        for text in texts(path)
        for match in [FROM_INDEX.search(text)]
        if match
    ]
    assert named == []
