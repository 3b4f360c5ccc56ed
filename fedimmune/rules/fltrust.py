"""FLTrust: clients count by how much their updates point the way of the server's own.

The paper does not say what happens if nobody's does. Here the model stays as it is then.

References
----------
Cao, Fang, Liu, Gong: *FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping*, NDSS
2021.
"""

from __future__ import annotations

import torch

from fedimmune.geometry import Geometry
from fedimmune.rules.base import ClientWeights, GeometryRule

__all__ = ["FLTrust"]

_AWAY = "its update does not point the way of the server's own"


class FLTrust(GeometryRule):
    """Weighs clients by the cosine of their update with the server's, which sets the length too.

    The trust in client i is TSᵢ = max(0, cos(xᵢ, x₀)) with x₀ the server's own update, and the
    result Σ TSᵢ (‖x₀‖ / ‖xᵢ‖) xᵢ / Σ TSᵢ. It is never longer than x₀, whatever anybody sends.
    `scores` are the trust. The server's update is to be trained as the clients' are; the paper
    takes 100 samples for it.
    """

    name = "fltrust"
    summary = "weights by the cosine with the server's own update, which sets the length"
    paper = "Cao et al., NDSS 2021"
    needs = frozenset({"anchor"})
    suspects_below = 0.0
    is_translation_equivariant = False
    weights_make_result = False
    bounds_lengths = True
    compares_clients = False

    def breakdown(self, n: int) -> int:
        return n

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        anchor, lengths = geometry.reference("anchor"), geometry.norms()
        own = anchor.square.sum().clamp(min=0).sqrt()
        inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
        along = anchor.products.sum(0) * inverse
        trust = (along / own).clamp(0, 1) if float(own) > 0 else torch.zeros_like(along)
        if float(trust.sum()) == 0:
            why = f"{_AWAY}; nobody's does, so the model stays as it is"
            return ClientWeights.of_nobody(geometry.clients, trust, why)
        shares = trust / trust.sum()
        reasons = {
            client: _AWAY
            for client, one in zip(geometry.clients, trust.tolist(), strict=True)
            if one == 0
        }
        return ClientWeights(shares, trust, shares * own * inverse, reasons)
