"""Starting and stopping a Flower federation: certificates, node keys, processes."""
