"""The attacks by name. A new attack is one file and one line here."""

from __future__ import annotations

from fedimmune.attacks.backdoor import Backdoor
from fedimmune.attacks.base import Attack
from fedimmune.attacks.label_flip import LabelFlip
from fedimmune.attacks.nothing import NoAttack
from fedimmune.attacks.omniscient import Omniscient
from fedimmune.registry import Registry

__all__ = ["create", "find", "names", "register", "resolve"]

_ATTACKS: Registry[Attack] = Registry(
    "attack", (NoAttack, Omniscient, LabelFlip, Backdoor), base=Attack
)

register = _ATTACKS.register
names = _ATTACKS.names
find = _ATTACKS.find
create = _ATTACKS.create
resolve = _ATTACKS.resolve
