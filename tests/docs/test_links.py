"""Every link in the documentation leads somewhere, in the repository as on the site."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "deploy", "traces", "experiments", "client", ".github")
PAGES = sorted(ROOT.glob("*.md")) + sorted(
    page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def anchors(page):
    """Of the headings, as GitHub and the site name them."""
    headings = HEADING.findall(BLOCK.sub("", page.read_text()))
    return {
        re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", each.lower())).strip("-") for each in headings
    }


def broken(page):
    for link in LINK.findall(BLOCK.sub("", page.read_text())):
        if re.match(r"(https?:|mailto:)", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: there is no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{link}: {target.name} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert list(broken(page)) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A title\n[a](gone.md) [b](#a-title) [c](#no-title) [d](page.md#a-title)\n")
    assert [each.partition(":")[0] for each in broken(page)] == ["gone.md", "#no-title"]


def test_every_page_of_the_documentation_is_in_the_navigation():
    named = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= named
