"""The endpoint picker: places requests for Envoy and other gateways, which carry the bytes."""
