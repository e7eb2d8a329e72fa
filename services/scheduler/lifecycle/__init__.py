"""The life of one request, whoever carries its bytes: the relay, or a gateway such as Envoy."""
