from __future__ import annotations

import gzip
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedimmune import tasks
from fedimmune.errors import InputError
from fedimmune.tasks.mnist import Mnist
from fedimmune.tasks.models.lenet import LeNet
from tests.tasks.making import NOWHERE, idx, idx_folder
from tests.tasks.training import learns

FOLDERS = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("packed", [True, False])
def test_a_folder_loads_and_trains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, packed: bool
) -> None:
    idx_folder(tmp_path / FOLDERS[name], packed=packed)
    task = tasks.get(name)
    assert isinstance(task, Mnist)
    data = task.load(tmp_path)
    assert data.clients.inputs.shape == (40, 1, 32, 32)
    assert data.server.inputs.shape == (20, 1, 32, 32)
    assert data.clients.inputs.dtype == torch.float32
    assert data.clients.labels.tolist() == [*range(10)] * 4
    assert data.highest == pytest.approx([(1 - task.mean) / task.std])
    # The darkest and the brightest of what was put in, resized, stay within.
    assert float(data.clients.inputs.min()) == pytest.approx(-task.mean / task.std)
    assert float(data.clients.inputs.max()) <= data.highest[0] + 1e-5  # type: ignore[index]
    assert f"{name}: 40 of 60,000 training and 20 of 10,000 test images: a subset" in caplog.text
    assert learns(task, data, steps=60, lr=0.05)


def test_the_subset_is_told_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    idx_folder(tmp_path / "MNIST" / "raw")
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fedimmune"):
            assert Mnist().load(tmp_path).file is not None
        assert "a subset" in caplog.text


def test_damage_is_named(tmp_path: Path) -> None:
    folder = idx_folder(tmp_path / "MNIST" / "raw")

    def problem(name: str, array: NDArray[np.uint8] | None) -> str:
        file = folder / name
        kept = file.read_bytes()
        file.write_bytes(gzip.compress(idx(array)) if array is not None else kept[:-20])
        with pytest.raises(InputError) as caught:
            Mnist().load(tmp_path)
        file.write_bytes(kept)
        assert name in str(caught.value)
        return str(caught.value)

    labels = np.arange(40, dtype=np.uint8) % 10
    name = "train-labels-idx1-ubyte.gz"
    assert "39 labels for 40 samples" in problem(name, labels[1:])
    assert "a label 10; they run from 0 to 9" in problem(name, labels + 1)
    assert "no sample of class 7" in problem(name, np.where(labels == 7, 0, labels).astype("u1"))
    assert "no sample of classes 1, 2, 3, 4, 5, …" in problem(name, labels * 0)
    assert "cannot be read" in problem(name, None)
    name = "t10k-images-idx3-ubyte.gz"
    assert "images of 8×28 pixels; 28×28" in problem(name, np.zeros((20, 8, 28), np.uint8))
    assert "cannot be read" in problem(name, None)
    name = "t10k-labels-idx1-ubyte.gz"
    assert "labels for 20 samples" in problem(name, labels[:0])


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mnist, "address", NOWHERE)
    idx_folder(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(InputError) as caught:
        Mnist().load(tmp_path)
    message = str(caught.value)
    for part in ("mnist: missing in", str(tmp_path / "MNIST" / "raw"), "t10k-images-idx3-ubyte.gz"):
        assert part in message
    for part in ("no connection", NOWHERE, "--data DIR", "FEDIMMUNE_DATA", "MNIST/raw/"):
        assert part in message
    assert "train-images" not in message
    assert "\n" not in message


def test_check_compares_with_what_was_published(tmp_path: Path) -> None:
    folder = idx_folder(tmp_path / "MNIST" / "raw")
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    file = folder / "train-labels-idx1-ubyte.gz"
    file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
    file.unlink()
    found = {each.path.name: each.verdict for each in Mnist().check(tmp_path)}
    assert found == {
        "train-images-idx3-ubyte.gz": "differs",
        "train-labels-idx1-ubyte": "unknown",
        "t10k-images-idx3-ubyte.gz": "differs",
        "t10k-labels-idx1-ubyte.gz": "missing",
    }
    assert all(each.verdict == "missing" for each in Mnist().check(tmp_path / "absent"))


def test_lenet_is_the_paper_s() -> None:
    net = LeNet()
    shapes = {name: tuple(each.shape) for name, each in net.named_parameters()}
    assert shapes == {
        "conv1.weight": (6, 1, 3, 3),
        "conv1.bias": (6,),
        "conv2.weight": (16, 6, 3, 3),
        "conv2.bias": (16,),
        "fc1.weight": (120, 576),
        "fc1.bias": (120,),
        "fc2.weight": (84, 120),
        "fc2.bias": (84,),
        "fc3.weight": (10, 84),
        "fc3.bias": (10,),
    }
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 10)
