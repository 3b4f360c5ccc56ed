"""The paper's tables and figures, reproduced from a clone: ``python -m reproduction``."""
