"""HTTP/1.1 as a server speaks it, without I/O: bytes in, events out, its states in one table."""
