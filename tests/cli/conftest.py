"""What tests of several commands use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fedimmune.cli import main


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call the program, which has to refuse in one line; gives the line.

    Which refusal has which exit code is held by test_interface.py.
    """

    def attempt(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["fedimmune", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        assert stop.value.code in {1, 2}, printed.err
        assert printed.out == ""
        assert len(printed.err.strip().splitlines()) == 1, printed.err
        return printed.err

    return attempt
