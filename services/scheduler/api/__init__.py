"""OpenAI's API, and Anthropic's, as the scheduler reads it: paths, fields, forms, errors."""
