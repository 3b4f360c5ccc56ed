"""The paper's experiments as commands: artefacts, what they need, and carrying it out."""
