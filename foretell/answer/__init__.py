"""An engine's answer without I/O: what of it goes to the client, whose fault its failure is, and
what another engine needs to go on with it."""
