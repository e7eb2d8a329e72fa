"""The Block paper's evaluation (arXiv 2508.03611) in the simulator."""
