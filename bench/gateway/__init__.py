"""The costs of gateways, Foretell's among them."""
