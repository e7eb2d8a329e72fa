"""What a running cluster does, as all of its schedulers together see it."""
