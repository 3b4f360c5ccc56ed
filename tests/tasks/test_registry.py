from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedimmune import tasks

RECIPES = {
    "mnist": (30, 0.01, 128),
    "fashion-mnist": (30, 0.01, 128),
    "cifar10": (30, 0.1, 128),
    "cifar100": (30, 0.1, 128),
    "tiny-imagenet": (45, 0.1, 128),
    "imdb": (10, 0.3, 128),
}


def test_the_tasks_and_their_recipes() -> None:
    assert set(tasks.available()) == {"digits", *RECIPES}
    for name, expected in RECIPES.items():
        recipe = tasks.find(name).recipe
        assert (recipe.rounds, recipe.lr, recipe.batch) == expected
        assert (recipe.momentum, recipe.weight_decay, recipe.local_epochs) == (0.5, 0, 1)


@pytest.mark.parametrize("name", tasks.available())
def test_tasks_describe_themselves(name: str) -> None:
    task = tasks.get(name)
    assert task.name == name
    assert task.summary
    assert task.source


def test_digits_need_nothing(tmp_path: Path) -> None:
    task = tasks.get("digits")
    assert task.check(tmp_path) == []
    data = task.load(tmp_path / "absent")
    assert data.spec == tasks.DataSpec(10, (1, 16, 16), (1.0,))
    assert len(data.clients) + len(data.server) == 1797
    assert task.model(data)(data.server.inputs[:3]).shape == (3, 10)
    assert torch.equal(data.clients.inputs, task.load(tmp_path).clients.inputs)
