"""`foretell settings`: list every setting of every service."""


def settings() -> None:
    """List every setting of every service."""
    from foretell.tools import settings_reference

    settings_reference.show()
