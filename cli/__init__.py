"""The `foretell` command."""
