"""The embedded engine: federated training with honest and hostile clients."""

from fedimmune.federation.rounds import Observer, run_folder, simulate
from fedimmune.federation.scenario import Scenario

__all__ = ["Observer", "Scenario", "run_folder", "simulate"]
