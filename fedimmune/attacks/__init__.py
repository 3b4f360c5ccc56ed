"""Attacks: what malicious clients do."""

from fedimmune.attacks.base import Attack, Trial
from fedimmune.attacks.registry import create, find, names, register, resolve

__all__ = ["Attack", "Trial", "create", "find", "names", "register", "resolve"]
