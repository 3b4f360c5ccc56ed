"""``python -m fedimmune.cli``."""

from fedimmune.cli import main

main()
