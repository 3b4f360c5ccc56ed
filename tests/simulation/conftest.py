"""Rules of a test's own, gone when the test is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fedimmune import Rule, rules
from fedimmune.rules import register
from fedimmune.rules.registry import _RULES


@pytest.fixture
def registered() -> Iterator[Callable[[type[Rule]], type[Rule]]]:
    """Register rules for the time of one test."""
    rules.available()  # so that all are there
    before = dict(_RULES._members)
    yield register
    _RULES._members.clear()
    _RULES._members.update(before)
