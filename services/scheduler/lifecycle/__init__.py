"""The life of one request, whether the relay carries its bytes or a gateway such as Envoy."""
