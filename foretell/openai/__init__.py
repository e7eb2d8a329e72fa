"""OpenAI's API, and Anthropic's, without I/O: what is read of requests, and errors."""
