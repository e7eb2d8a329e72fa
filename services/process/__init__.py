"""What every service process needs: sockets, signals, children, folders, probes."""
