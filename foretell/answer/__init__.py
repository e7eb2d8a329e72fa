"""An engine's answer without I/O: what the client gets of it, whose fault a failure is, and what
another engine needs to continue it."""
