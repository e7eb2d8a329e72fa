"""What a file of offline requests asks of a GPU, and in which order it is done soonest."""
