"""FLAME: clients whose models point elsewhere are left out, the others clipped and blurred.

HDBSCAN on the cosine distances of the local *models* w + xᵢ, with clusters of at least ⌊n/2⌋ + 1
clients, so that there is one; who is noise is left out. The others' updates are shortened to S, the
median length of all n, and averaged; noise of deviation λS is added to each value.

With clusters of more than half of the clients, HDBSCAN peels clients off, the farthest first, as
long as ⌊n/2⌋ + 1 are left in one piece: it often leaves out nearly half of the clients although
nobody attacks.

References
----------
Nguyen, Rieger, Chen, Yalame, Möllering, Fereidooni, Marchal, Miettinen, Mirhoseini, Zeitouni,
Koushanfar, Sadeghi, Schneider: *FLAME: Taming Backdoors in Federated Learning*, USENIX Security
2022.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from fedimmune.geometry import Geometry
from fedimmune.results import Verdict
from fedimmune.rules.base import ClientWeights, Common, GeometryRule
from fedimmune.rules.selection import mean_of
from fedimmune.validation import check_int, check_open_fraction

__all__ = ["Flame"]


class Flame(GeometryRule):
    """The mean of the models that point the same way, clipped to the median length, with noise.

    Parameters
    ----------
    noise
        λ: the noise's standard deviation, in median lengths of the updates; 0 for none.
    seed
        Noise is drawn from it and the round's number.
    """

    name = "flame"
    summary = "the largest cluster of local models, clipped to the median length, plus noise"
    paper = "Nguyen et al., USENIX Security 2022"
    symbols = {"noise": "λ"}
    needs = frozenset({"model"})
    unweighted_means = Verdict.UNUSED  # it may leave out nearly half although nobody attacks
    weights_make_result = False
    bounds_lengths = True
    is_translation_equivariant = False
    is_scale_equivariant = False  # the model stays as it is
    packages = frozenset({"scipy"})

    def __init__(self, *, noise: float = 0.001, seed: int = 0, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.noise = check_open_fraction(self.name, "noise", noise, below=1)
        self.seed = check_int(self.name, "seed", seed, 0)

    @property
    def clients_needed(self) -> int:
        return 3

    def breakdown(self, n: int) -> int:
        return (n - 1) // 2  # more could make the median length anything

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        distances = _between_models(geometry)
        kept = _first_majority(distances)
        lengths = geometry.norms()
        usual = float(lengths.quantile(0.5))
        score = distances[:, kept].mean(1)
        return mean_of(kept, lengths, usual, score=score, noise=self.noise * usual)


def _first_majority(distances: Tensor) -> Tensor:
    """Return who is in the first piece of more than half, joining the nearest first, (n,)."""
    from scipy.cluster.hierarchy import fcluster, linkage  # noqa: PLC0415 (others do without)

    n = len(distances)
    joints = linkage(distances[tuple(torch.triu_indices(n, n, 1))].numpy(), "single")
    reach = joints[(joints[:, 3] > n // 2).argmax(), 2]
    pieces = torch.from_numpy(fcluster(joints, reach, "distance"))
    return pieces == pieces.mode().values


def _between_models(geometry: Geometry) -> Tensor:
    """Cosine distances of the local models w + x, (n, n).

    Models may be much longer than updates: then 1 − cos(u, v) is a difference of nearly equal
    numbers. It is also (‖u − v‖² − (‖u‖ − ‖v‖)²) / (2‖u‖‖v‖), in which w cancels beforehand; that
    in turn is bad for an update that is much longer than the others.
    """
    model, gram = geometry.reference("model"), geometry.gram()
    along, square = model.products.sum(0), model.square.sum()
    change = 2 * along + gram.diagonal()  # of the squared length
    lengths = (square + change).clamp(min=torch.finfo(torch.float64).tiny).sqrt()
    products = torch.outer(lengths, lengths)
    apart = geometry.squared_distances()
    longer = (change[:, None] - change) / (lengths[:, None] + lengths)
    near = (apart - longer.square()) / (2 * products)
    far = 1 - (square + along[:, None] + along + gram) / products
    distances = torch.where(apart < products / 4, near, far).clamp(0, 2)
    return ((distances + distances.T) / 2).fill_diagonal_(0)
