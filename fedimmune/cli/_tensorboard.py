"""Records as scalars for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedimmune.errors import InputError

if TYPE_CHECKING:
    from fedimmune.runs.records import RoundRecord

__all__ = ["scalars"]

_PLAIN = ("accuracy", "loss", "asr", "asr_others", "accuracy_without_success", "distance")
_DETECTION = ("precision", "recall", "auroc", "attacker_weight")


@contextmanager
def scalars(folder: Path | None, name: str) -> Iterator[Callable[[RoundRecord], None]]:
    """Yield a function that writes a record's scalars; without a folder it does nothing.

    `folder` is TensorBoard's ``--logdir``, `name` the run's name in it.
    """
    if folder is None:
        yield lambda _: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            "--tensorboard needs an extra: pip install 'fedimmune[tensorboard]'"
        ) from error
    try:
        # A run that resumes yields all its records again: what was written for them is replaced.
        writer = SummaryWriter(str(folder / name), purge_step=1)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from error
    with writer:
        yield lambda record: _write(writer, record)


def _write(writer: object, record: RoundRecord) -> None:
    add = writer.add_scalar  # type: ignore[attr-defined]
    found = {name: getattr(record, name) for name in _PLAIN}
    found |= {f"detection/{name}": getattr(record, name) for name in _DETECTION}
    found |= {f"weight/{client.client}": client.weight for client in record.clients}
    found |= {f"seconds/{name}": value for name, value in record.seconds}
    for tag, value in found.items():
        if value is not None:
            add(tag, value, record.round)
