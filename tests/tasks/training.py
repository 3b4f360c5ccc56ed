"""A few steps of training."""

from __future__ import annotations

import torch

from fedimmune.tasks import Data, Task


def learns(task: Task, data: Data, steps: int, lr: float, batch: int = 40) -> bool:
    """Train on the first samples, and say whether their loss fell by a tenth and stayed finite."""
    torch.manual_seed(0)
    model = task.model(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=task.recipe.momentum)
    inputs, labels = data.clients.inputs[:batch], data.clients.labels[:batch]
    losses = []
    for _ in range(steps + 1):
        optimizer.zero_grad()
        loss = task.loss(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[-1] < 0.9 * losses[0]
