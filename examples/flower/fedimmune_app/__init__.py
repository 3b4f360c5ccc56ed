"""A federation under attack, as a Flower app."""
