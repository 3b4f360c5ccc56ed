"""A client that adds a little noise to the model and sends it back."""

from __future__ import annotations

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

app = ClientApp()

_NOISE = 65_536
"""So many numbers are drawn, and used over and over: drawing millions would be work."""


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer, and say how long that took: it is not transport."""
    began = time.perf_counter()
    sent = message.content.array_records["arrays"]
    noise = np.random.default_rng(context.node_id).normal(0, 0.01, _NOISE).astype(np.float32)
    arrays = {name: Array(_noisy(array.numpy(), noise)) for name, array in sent.items()}
    spent = MetricRecord({"num-examples": 100, "seconds": time.perf_counter() - began})
    reply = RecordDict({"arrays": ArrayRecord(arrays), "metrics": spent})
    return Message(content=reply, reply_to=message)


def _noisy(values: NDArray[np.float32], noise: NDArray[np.float32]) -> NDArray[np.float32]:
    return values + np.resize(noise, values.shape)
