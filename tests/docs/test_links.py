"""Links lead somewhere, to the heading too, and stay inside of the site."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, headings_of, links_of, pages

# Anchors that are there only when the site is built.
GENERATED = {DOCS / "command-line.md": {"patch", "rehearse", "simulate", "train"}}


@pytest.mark.parametrize("page", [*pages(), ROOT / "CONTRIBUTING.md"], ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links_of(page):
        if "://" in link:
            assert link.startswith("https://"), link
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name} → {link}"
        if page.is_relative_to(DOCS):
            assert file.is_relative_to(DOCS), f"{page.name} → {link} leaves the site"
        if anchor:
            known = headings_of(file) | GENERATED.get(file, set())
            assert anchor in known, f"{page.name} → {link}: no such heading"


def test_every_page_can_be_reached_from_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).as_posix()
        assert name in navigation or name.startswith("results/"), name


def test_every_picture_is_used_and_small() -> None:
    links = [(page.parent / link).resolve() for page in pages() for link in links_of(page)]
    for picture in (DOCS / "images").iterdir():
        assert picture in links
        assert picture.stat().st_size < 200_000
