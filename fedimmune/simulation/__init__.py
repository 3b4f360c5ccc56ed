"""Simulation: federated training with honest and hostile clients."""

from fedimmune.simulation.engine import Observer, run_folder, simulate
from fedimmune.simulation.scenario import Scenario

__all__ = ["Observer", "Scenario", "run_folder", "simulate"]
