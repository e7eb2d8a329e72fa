"""What gateways cost, ours among them."""
