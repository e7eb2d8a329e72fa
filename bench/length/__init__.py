"""Output lengths and the model that estimates them."""
