"""The embedded engine: federated training with honest and hostile clients."""
