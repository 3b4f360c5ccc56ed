"""What scores promise: bounds on weights and on the error of the aggregated update.

The corrected statements of Lemma 1 of Wan and Chen, *Robust Federated Learning with Attack-Adaptive
Aggregation*, 2021. The derivation is in docs/theory.md, which says where the printed lemma fails.
"""

from __future__ import annotations

from fedimmune.bounds.choosing import conservative_c, needed_score_error
from fedimmune.bounds.error import best_case, error_bound, spread_bound
from fedimmune.bounds.measured import holds_in_most, score_error, spread_and_margin
from fedimmune.bounds.weights import (
    Range,
    attacker_weights,
    attackers_together,
    benign_kept_up_to,
    benign_weights,
    surely_truncated_below,
)

__all__ = [
    "Range",
    "attacker_weights",
    "attackers_together",
    "benign_kept_up_to",
    "benign_weights",
    "best_case",
    "conservative_c",
    "error_bound",
    "holds_in_most",
    "needed_score_error",
    "score_error",
    "spread_and_margin",
    "spread_bound",
    "surely_truncated_below",
]
