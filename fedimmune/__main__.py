"""``python -m fedimmune``: the command line."""

from fedimmune.cli import main

main()
