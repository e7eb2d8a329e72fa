"""Output lengths from files: read, estimated, scored."""
