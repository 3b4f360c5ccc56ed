"""Attention networks that weigh clients: the one that ships, and the paper's own."""
