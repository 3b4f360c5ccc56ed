"""``fedimmune data``."""
