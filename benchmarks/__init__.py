"""Benchmarks: how quick the rules are, and how much memory they take."""
