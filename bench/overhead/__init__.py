"""What predictions and the scheduler cost."""
