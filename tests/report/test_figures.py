"""Figures for a paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fedimmune.errors import InputError
from fedimmune.report import write_figures
from tests.report.making import make_run, scenario_of


def test_every_picture_as_png_and_pdf(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "run")
    written = write_figures([tmp_path / "runs"], tmp_path / "deep" / "figures")
    assert sorted(written) == sorted((tmp_path / "deep" / "figures").iterdir())
    names = {file.name for file in written}
    start = "digits-backdoor-by-4-of-10-clients"
    for name in ("acc", "asr", "score", "weight", "precision", "recall", "time"):
        assert {f"{start}-{name}.png", f"{start}-{name}.pdf"} <= names
    assert {f"{start}-trust-map-of-krum.png", "partition.png"} <= names
    for file in written:
        if file.suffix == ".pdf":
            assert file.read_bytes().startswith(b"%PDF")
            continue
        with Image.open(file) as image:
            assert min(image.size) > 200
            shades = image.convert("L").tobytes()
            assert min(shades) < 128 < max(shades), "something is drawn"


def test_hostile_names_are_no_paths_and_no_formulas(tmp_path: Path) -> None:
    bad = "../../$\\frac{1$/\x01x"
    make_run(
        tmp_path / "run",
        scenario_of(bad.replace("\x01", ""), "none", rounds=2, task={"name": "../up"}),
        names={3: bad},
    )
    written = write_figures([tmp_path / "run"], tmp_path / "figures")
    assert {file.parent for file in written} == {tmp_path / "figures"}


@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pip install 'fedimmune\[figures\]'"):
        write_figures([tmp_path], tmp_path / "figures")
    assert not (tmp_path / "figures").exists()
