"""What an operator watches: the catalogue of metrics, the panels and alerts made of them."""
