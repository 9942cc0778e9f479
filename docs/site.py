"""Hooks of mkdocs: pages that lie elsewhere in the repository, and links to them.

Sources link as they lie in the repository, so that links work there too.
"""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "operations/deploy.md",
    "deploy/topics.md": "operations/topics.md",
    "traces/README.md": "reference/formats.md",
    "experiments/README.md": "research/experiments.md",
    "experiments/REPORT.md": "research/report.md",
}
SOURCES = {site: source for source, site in PAGES.items()}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, site in PAGES.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    here = page.file.src_uri
    source = SOURCES.get(here, f"docs/{here}")

    def rewritten(found: re.Match[str]) -> str:
        picture, text, link, anchor = found[1], found[2], found[3], found[4] or ""
        if not link or "://" in link or link.startswith("mailto:"):
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        site = PAGES.get(target)
        if site is None and target.startswith("docs/"):
            site = target.removeprefix("docs/")
        if site is not None:
            relative = os.path.relpath(site, posixpath.dirname(here) or ".")
            return f"{picture}[{text}]({relative}{anchor})"
        if (ROOT / target).exists():  # a file of the repository that is no page
            return text
        return found[0]

    return _LINK.sub(rewritten, markdown)
