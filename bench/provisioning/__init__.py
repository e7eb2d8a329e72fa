"""How well the number of instances follows the load."""
