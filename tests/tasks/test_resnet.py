from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedimmune import tasks
from fedimmune.errors import InputError, ParameterError
from fedimmune.tasks import Data, Samples
from fedimmune.tasks.models.resnet import ResNet18

DATA = Data(
    Samples(torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64)),
    Samples(torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64)),
    classes=10,
)


def published(width: int = 64, classes: int = 1000) -> dict[str, tuple[int, ...]]:
    """The parameters of torchvision's resnet18 and their shapes, in their order."""

    def bn(name: str, channels: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}

    found: dict[str, tuple[int, ...]] = {"conv1.weight": (width, 3, 7, 7), **bn("bn1", width)}
    before = width
    for stage in range(1, 5):
        after = width * 2 ** (stage - 1)
        for block in range(2):
            name = f"layer{stage}.{block}"
            came = before if block == 0 else after
            found |= {f"{name}.conv1.weight": (after, came, 3, 3), **bn(f"{name}.bn1", after)}
            found |= {f"{name}.conv2.weight": (after, after, 3, 3), **bn(f"{name}.bn2", after)}
            if block == 0 and stage > 1:
                found[f"{name}.downsample.0.weight"] = (after, before, 1, 1)
                found |= bn(f"{name}.downsample.1", after)
        before = after
    return found | {"fc.weight": (classes, 8 * width), "fc.bias": (classes,)}


def test_names_and_shapes_are_torchvision_s() -> None:
    net = ResNet18()
    found = [(name, tuple(each.shape)) for name, each in net.named_parameters()]
    assert found == list(published().items())
    assert len(found) == 62
    assert sum(each.numel() for each in net.parameters()) == 11_689_512
    state = net.state_dict()
    assert len(state) == 122
    kinds = ("running_mean", "running_var", "num_batches_tracked")
    layers = [name.rpartition(".")[0] for name in state if name.endswith("running_mean")]
    assert {*state} == {*published()} | {f"{layer}.{kind}" for layer in layers for kind in kinds}


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
@pytest.mark.parametrize("width", [1, 8])
def test_width_and_stem(stem: str, width: int) -> None:
    net = ResNet18(7, width, stem)
    expected = published(width, 7)
    if stem == "cifar":
        expected["conv1.weight"] = (width, 3, 3, 3)
    assert {name: tuple(each.shape) for name, each in net.named_parameters()} == expected
    seen: list[int] = []
    net.layer1.register_forward_pre_hook(lambda _, came: seen.append(came[0].shape[-1]))
    for side in (32, 64):
        assert net(torch.randn(2, 3, side, side)).shape == (2, 7)
    assert seen == ([8, 16] if stem == "imagenet" else [32, 64])


def test_a_block_adds_what_came_in() -> None:
    stage = ResNet18(10, 4).layer1.eval()
    came = torch.rand(1, 4, 5, 5)
    with torch.no_grad():
        for name, each in stage.named_parameters():
            if "bn2" in name:
                each.zero_()
        assert torch.equal(stage(came), came)


# ---------------------------------------------------------------- public weights


def state(classes: int = 1000, width: int = 2, stem: str = "imagenet") -> dict[str, Tensor]:
    torch.manual_seed(1)
    return ResNet18(classes, width, stem).state_dict()


def loaded(path: Path, **parameters: object) -> dict[str, Tensor]:
    task = tasks.get("cifar10", **({"width": 2} | parameters), weights=str(path))
    torch.manual_seed(2)
    return task.model(DATA).state_dict()


@pytest.mark.parametrize("suffix", ["safetensors", "pth", "pt"])
@pytest.mark.parametrize("classes", [10, 1000])
def test_weights_are_loaded(tmp_path: Path, suffix: str, classes: int) -> None:
    path, given = tmp_path / f"weights.{suffix}", state(classes)
    save_file(given, path) if suffix == "safetensors" else torch.save(given, path)
    torch.manual_seed(2)
    fresh = ResNet18(10, 2).state_dict()
    for name, tensor in loaded(path).items():
        keeps = name.startswith("fc.") and classes != 10
        assert torch.equal(tensor, fresh[name] if keeps else given[name]), name


def test_files_without_counts_or_classifier(tmp_path: Path) -> None:
    """Torchvision's own file is older than the counts of batches."""
    given = {name: each for name, each in state().items() if "num_batches" not in name}
    torch.save(given, tmp_path / "old.pth")
    assert torch.equal(loaded(tmp_path / "old.pth")["conv1.weight"], given["conv1.weight"])
    bare = {name: each for name, each in given.items() if not name.startswith("fc.")}
    torch.save(bare, tmp_path / "bare.pth")
    assert torch.equal(loaded(tmp_path / "bare.pth")["conv1.weight"], given["conv1.weight"])


def test_half_precision_will_do(tmp_path: Path) -> None:
    given = {
        name: each.half() if each.is_floating_point() else each for name, each in state().items()
    }
    save_file(given, tmp_path / "half.safetensors")
    found = loaded(tmp_path / "half.safetensors")["layer1.0.conv1.weight"]
    assert found.dtype == torch.float32
    assert torch.equal(found, given["layer1.0.conv1.weight"].float())


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("width", r"'conv1\.weight' has shape \(3, 3, 7, 7\), and \(2, 3, 7, 7\) is needed"),
        ("stem", r"'conv1\.weight' has shape \(2, 3, 3, 3\)"),
        ("lacks", r"it has no 'layer2\.0\.conv2\.weight'"),
        ("more", r"the model has no 'layer5\.weight'"),
        ("prefix", r"it has no 'conv1\.weight'"),
        ("half of fc", r"it has no 'fc\.bias'"),
        ("nan", r"'layer3\.1\.bn1\.bias' has values that are not finite"),
        ("empty", r"it has no 'conv1\.weight'"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, suffix: str, change: str, problem: str) -> None:
    given = state(10)
    if change == "width":
        given = state(10, width=3)
    elif change == "stem":
        given = state(10, stem="cifar")
    elif change == "lacks":
        del given["layer2.0.conv2.weight"]
    elif change == "more":
        given["layer5.weight"] = torch.zeros(1)
    elif change == "prefix":
        given = {f"module.{name}": tensor for name, tensor in given.items()}
    elif change == "half of fc":
        del given["fc.bias"]
    elif change == "nan":
        given["layer3.1.bn1.bias"][0] = torch.nan
    else:
        given = {}
    path = tmp_path / f"weights.{suffix}"
    save_file(given, path) if suffix == "safetensors" else torch.save(given, path)
    with pytest.raises(InputError, match=problem) as caught:
        loaded(path)
    assert str(path) in str(caught.value)
    if change != "nan":
        assert 'width = 64 and stem = "imagenet"; the task has width = 2' in str(caught.value)


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    torch.save({"conv1.weight": Hostile(tmp_path / "ran")}, tmp_path / "hostile.pth")
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    torch.save({"state_dict": state()}, tmp_path / "checkpoint.pth")
    torch.save(state(), tmp_path / "whole.pth")
    (tmp_path / "cut.pth").write_bytes((tmp_path / "whole.pth").read_bytes()[:-2000])
    (tmp_path / "text.pth").write_text("<html>not found</html>")
    (tmp_path / "empty.pth").touch()
    (tmp_path / "folder.pth").mkdir()
    (tmp_path / "text.safetensors").write_text("<html>not found</html>")
    (tmp_path / "weights.bin").touch()
    for name, problem in {
        "hostile.pth": "cannot be read as a state dict",
        "list.pth": "not hold a state dict of tensors by name",
        "checkpoint.pth": "not hold a state dict of tensors by name",
        "cut.pth": "cannot be read as a state dict",
        "text.pth": "cannot be read as a state dict",
        "empty.pth": "cannot be read as a state dict",
        "folder.pth": "cannot be read as a state dict",
        "absent.pth": "no such file",
        "text.safetensors": "cannot be read as safetensors",
        "absent.safetensors": "no such file",
        "weights.bin": r"ends in \.safetensors, \.pth, \.pt",
    }.items():
        with pytest.raises(InputError, match=problem) as caught:
            loaded(tmp_path / name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tiny-imagenet"])
def test_parameters(name: str) -> None:
    task = tasks.get(name)
    assert type(task).parameters() == {
        "width": 64,
        "stem": "imagenet",
        "weights": None,
        "varied": None,
        "scaling": None,
    }
    assert re.search(r"width=64, stem='imagenet', weights=None", repr(task))
    for wrong in (
        *({"width": 0}, {"width": 1.5}, {"stem": "none"}, {"weights": 3}, {"depth": 34}),
        *({"varied": "crops"}, {"scaling": "none"}),
    ):
        with pytest.raises(ParameterError, match=name):
            tasks.get(name, **wrong)


def test_flips_turn_about_half_of_the_images_and_nothing_else() -> None:
    images = torch.randn(200, 3, 6, 6)
    assert torch.equal(tasks.get("cifar10").augment(images), images)
    torch.manual_seed(3)
    found = tasks.get("cifar10", varied="flips").augment(images)
    turned = [torch.equal(a, b.flip(-1)) for a, b in zip(found, images, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(found, images, strict=True)]
    assert [a != b for a, b in zip(turned, kept, strict=True)] == [True] * 200
    assert 60 < sum(turned) < 140
