"""What the scores of a defence promise: their error on rehearsals, and the bound that follows.

See `fedimmune.bounds` and docs/theory.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedimmune import bounds
from fedimmune.adaptive.forms import FormSettings
from fedimmune.errors import ParameterError

__all__ = ["promises"]


def promises(scores: Tensor, attackers: Tensor, settings: FormSettings) -> dict[str, Any]:
    """Measure the score error of rounds, and say what it promises.

    Parameters
    ----------
    scores
        Of the last pass, (rounds, n).
    attackers
        Who attacks, (rounds, n), equally many in all rounds.
    settings
        Of the form.

    Returns
    -------
    dict
        What half of the rounds keep within: ``score_error``, ε′, and ``score_error_most``, which
        nine of ten do; ``bound``, the largest error of the result that ε′ allows, in lengths of the
        longest update; ``bound_by_spread``, the same by how far honest clients' scores lie apart
        and above the attackers', for the softmax sees no more than such differences. Bounds are
        None where c is too large to compute them.
    """
    error = bounds.score_error(scores, attackers)
    found: dict[str, Any] = {
        "score_error": bounds.holds_in_most(error, 0.5),
        "score_error_most": bounds.holds_in_most(error, 0.9),
        "bound": None,
        "bound_by_spread": None,
    }
    setting: dict[str, Any] = {
        "n": attackers.shape[1],
        "m": int(attackers[0].sum()),
        "c": settings.c,
        "eps": settings.eps,
    }
    spread, margin = (each.tolist() for each in bounds.spread_and_margin(scores, attackers))
    try:
        by_error = [bounds.error_bound(each, **setting) for each in error.tolist()]
        by_spread = [
            bounds.spread_bound(*each, **setting) for each in zip(spread, margin, strict=True)
        ]
    except ParameterError:  # c is beyond what bounds can be computed for
        return found
    return found | {
        "bound": bounds.holds_in_most(torch.tensor(by_error), 0.5),
        "bound_by_spread": bounds.holds_in_most(torch.tensor(by_spread), 0.5),
    }
