"""Writes what runs a cluster elsewhere: files derived from its cluster file."""
