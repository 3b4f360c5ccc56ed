"""The learned rule: recordings, forms, training, defences."""
