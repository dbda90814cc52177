"""A small payments server, a client that behaves like an agent's harness, and what happens between them."""
