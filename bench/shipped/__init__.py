"""Makes the files that ship, from data that is not part of this repository."""
