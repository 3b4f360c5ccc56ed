"""The paper's tables and figures, made anew from a clone: ``python -m reproduction``."""
