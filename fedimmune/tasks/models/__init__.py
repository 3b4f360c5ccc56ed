"""Models that the tasks train."""
