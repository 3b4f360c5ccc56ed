"""A Flower app that trains nothing, so that the rest of a round can be measured."""
