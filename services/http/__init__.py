"""Clients' connections: their sockets, TLS, deadlines, and the requests on them."""
