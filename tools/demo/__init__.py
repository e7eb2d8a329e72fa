"""A short load on a running cluster, and how what was predicted met what happened."""
