"""Attention finds outliers that PCA does not show: the paper's synthetic demonstration, in seconds.

    python examples/synthetic.py [FOLDER]

Ten samples of thirty features make a set. One to four of them are outliers: they differ in the
first ten features. The last ten features are noise, and larger than anything else. The network sees
2048 such sets and who the outliers were, then sets that it has never seen.

Needs the extra ``figures``: pip install 'fedimmune[figures]'
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedimmune.adaptive.description import Epoch
from fedimmune.errors import FedimmuneError
from fedimmune.report.synthetic import draw_synthetic
from fedimmune.synthetic import demonstrate

FINDINGS = """
On {sets} sets that it has not seen
  the outliers' share of the weight      {attacker_weight:8.1%}   (of the samples: {outliers:.1%})
  inliers that have a weight             {benign_kept:8.1%}
  sets with just the inliers weighed     {exact:8.1%}
  distance to the inliers' mean          {distance:8.3f}   (plain mean {distance_of_mean:.3f}, \
median {distance_of_median:.3f})

How well outliers can be told: 1 always, 0.5 by chance (AUROC)
  by the network's weights               {auroc:8.3f}
  by the distance from the median        {median_auroc:8.3f}
  by the distance from the centre, in
    the first two principal components   {plane_auroc:8.3f}
  by the best line through these two,
    drawn by one who knows the outliers  {line_auroc:8.3f}   (of random ones: {line_chance:.3f})

Of the ten most important features, {important:.0f} are among the first ten.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Learn, print what was found, and draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/synthetic"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sets", type=int, default=2048, help="how many to learn from")
    parser.add_argument("--epochs", type=int, default=20)
    chosen = parser.parse_args(arguments)
    try:
        found = demonstrate(
            seed=chosen.seed, sets=chosen.sets, epochs=chosen.epochs, on_epoch=_tell
        )
        outliers = float(found.sets.attackers.double().mean())
        print(FINDINGS.format(sets=len(found.sets), outliers=outliers, **found.figures))
        for file in draw_synthetic(found, chosen.folder):
            print(file)
    except FedimmuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _tell(epoch: Epoch) -> None:
    print(
        f"epoch {epoch.number:2}: loss {epoch.training:.3f}, on other sets {epoch.validation:.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
