"""The reader of pages notices what it is there to notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks_of, slug
from tests.docs.running import Reader, figures_aside


def followed(text: str, place: Path) -> Reader:
    page = ROOT / "docs" / "nowhere.md"
    path = place / "page.md"
    path.write_text(text, encoding="utf-8")
    reader = Reader(place)
    for block in blocks_of(path):
        object.__setattr__(block, "page", page)
        reader.follow(block)
    return reader


def test_names_go_from_block_to_block_and_files_are_written(place: Path) -> None:
    reader = followed(
        '```python title="own.py"\nVALUE = 3\n```\n\n```python\nimport own\n```\n'
        "and\n```python\nprint(own.VALUE + 1)\n```\n<!-- printed -->\n```text\n4\n```\n",
        place,
    )
    assert reader.printed == "4\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nprint(4)\n```\n<!-- printed -->\n```text\n5\n```\n", AssertionError),
        (
            "```python\nprint('a 4')\n```\n<!-- printed, figures aside -->\n```text\nb 5\n```\n",
            AssertionError,
        ),
        ("```python\nraise KeyError\n```\n", KeyError),
        ("```sh\nfedimmune nothing\n```\n", AssertionError),
        ("```sh\nfalse\n```\n", AssertionError),
        ("```ruby\nputs 4\n```\n", AssertionError),
    ],
)
def test_what_does_not_work_fails(text: str, error: type[Exception], place: Path) -> None:
    with pytest.raises(error):
        followed(text, place)


def test_what_is_not_to_be_run_is_not(place: Path) -> None:
    followed("<!-- not run: it would fail -->\n```python\nraise KeyError\n```\n", place)
    followed("```\na picture\n```\n", place)


def test_a_remark_is_of_the_next_block_alone(place: Path) -> None:
    text = "<!-- not run: x -->\n```sh\nfalse\n```\nwords\n```sh\nfalse\n```\n"
    with pytest.raises(AssertionError):
        followed(text, place)


def test_figures_are_put_aside() -> None:
    assert figures_aside("ACC  9.5%, 3e-4 of −2") == "ACC #%, # of #"


def test_anchors() -> None:
    assert slug("`krum`, `multi-krum`") == "krum-multi-krum"
    assert slug("What happens when …") == "what-happens-when"
