"""What tenants may use: rate limits, and a share of the requests in progress."""
