"""OpenAI's and Anthropic's APIs without I/O: parsing of requests, headers and errors."""
