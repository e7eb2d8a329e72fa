"""Thin shells around the library: processes, sockets, clocks. Services never import each other."""
