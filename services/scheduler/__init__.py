"""The OpenAI endpoint: validate, tag, predict, choose, relay. Stateless."""
