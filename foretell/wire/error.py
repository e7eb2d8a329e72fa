"""What is wrong with a message."""


class WireError(ValueError):
    """A message that decodes as protobuf but contradicts itself."""
