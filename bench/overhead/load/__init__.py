"""A cluster under load, in which only the engines are no engines."""
