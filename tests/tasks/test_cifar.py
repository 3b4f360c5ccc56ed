from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedimmune import tasks
from fedimmune.errors import InputError
from fedimmune.tasks.archives import Archive
from fedimmune.tasks.cifar10 import Cifar10
from fedimmune.tasks.cifar100 import Cifar100
from tests.tasks.making import NOWHERE, cifar10_folder, cifar100_folder, cifar_content
from tests.tasks.training import learns


def test_cifar10_loads_and_trains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cifar10_folder(tmp_path, each=2)
    task = tasks.get("cifar10", width=4, stem="cifar")
    data = task.load(tmp_path)
    assert data.clients.inputs.shape == (100, 3, 32, 32)
    assert data.server.inputs.shape == (20, 3, 32, 32)
    assert data.classes == 10
    assert "cifar10: 100 of 50,000 training and 20 of 10,000 test images: a subset" in caplog.text
    assert learns(task, data, steps=5, lr=0.1)


def test_images_can_be_scaled_otherwise(tmp_path: Path) -> None:
    """One after the other: what was prepared for one scaling is not another's."""
    cifar10_folder(tmp_path, each=2)
    own, half = (tasks.get("cifar10", scaling=how).load(tmp_path) for how in (None, "half"))
    assert half.highest == (1.0, 1.0, 1.0)
    assert own.highest is not None
    mean, std = (torch.tensor(each).reshape(3, 1, 1) for each in (Cifar10.mean, Cifar10.std))
    torch.testing.assert_close(own.server.inputs * std + mean, half.server.inputs / 2 + 0.5)


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    cifar100_folder(tmp_path)
    data = tasks.get("cifar100").load(tmp_path)
    assert data.classes == 100
    assert data.clients.labels.tolist() == [*range(100)]


def test_pixels_are_where_the_file_has_them(tmp_path: Path) -> None:
    """A row is all of red, then green, then blue, each row by row."""
    cifar10_folder(tmp_path)
    data = Cifar10().load(tmp_path)
    pixels = cifar_content("labels", 10, 1, seed=0)["data"]
    means, stds = torch.tensor(Cifar10.mean), torch.tensor(Cifar10.std)
    for channel, y, x in ((0, 0, 0), (1, 3, 31), (2, 31, 7)):
        expected = (pixels[4, channel * 1024 + y * 32 + x] / 255 - means[channel]) / stds[channel]
        assert float(data.clients.inputs[4, channel, y, x]) == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"labels": [0] * 9}, "10 images and 9 labels"),
        ({"labels": [10] * 10}, "no list 'labels' of numbers from 0 to 9"),
        ({"labels": [-1] * 10}, "no list 'labels'"),
        ({"labels": ["0"] * 10}, "no list 'labels'"),
        ({"labels": [True] * 10}, "no list 'labels'"),
        ({"labels": np.arange(10) / 2}, "no list 'labels'"),
        ({"labels": np.arange(10) + 1}, "a label 10"),
        ({"labels": None}, "no list 'labels'"),
        ({"labels": [0] * 10}, "no sample of classes 1, 2"),
        ({"data": None}, "no 'data' of bytes, 3072 per image"),
        ({"data": [[0] * 3072] * 10}, "no 'data' of bytes"),
        ({"data": np.zeros((10, 3072), np.int64)}, "no 'data' of bytes"),
        ({"data": np.zeros((10, 3071), np.uint8)}, "no 'data' of bytes"),
        ({"data": np.zeros((10, 3, 1024), np.uint8)}, "no 'data' of bytes"),
        ({"data": np.zeros((0, 3072), np.uint8), "labels": []}, "holds no samples"),
    ],
)
def test_damage_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    file = cifar10_folder(tmp_path) / "test_batch"
    file.write_bytes(pickle.dumps(cifar_content("labels", 10, 1, seed=0) | change, protocol=2))
    with pytest.raises(InputError, match=problem) as caught:
        Cifar10().load(tmp_path)
    assert str(file) in str(caught.value)


def test_labels_may_be_an_array(tmp_path: Path) -> None:
    file = cifar10_folder(tmp_path) / "test_batch"
    content = cifar_content("labels", 10, 1, seed=0) | {"labels": np.arange(10, dtype=np.uint8)}
    file.write_bytes(pickle.dumps(content))
    assert Cifar10().load(tmp_path).server.labels.tolist() == [*range(10)]


def test_a_missing_batch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cifar10_folder(tmp_path) / "data_batch_3").unlink()
    with pytest.raises(InputError, match=r"cifar10: missing in .*batches-py: data_batch_3\. Get"):
        Cifar10().load(tmp_path)
    archive = Archive(f"{NOWHERE}cifar-100-python.tar.gz", "0" * 32, "cifar-100-python")
    monkeypatch.setattr(Cifar100, "archive", archive)
    with pytest.raises(InputError, match=r"train, test\. Downloading failed: .*FEDIMMUNE_DATA"):
        Cifar100().load(tmp_path)


def test_check(tmp_path: Path) -> None:
    (cifar10_folder(tmp_path) / "data_batch_3").unlink()
    verdicts = [each.verdict for each in Cifar10().check(tmp_path)]
    assert verdicts == ["differs", "differs", "missing", "differs", "differs", "differs"]
