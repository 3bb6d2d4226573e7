"""The daemon's local API on a unix socket: server, the operations behind it, the schema it answers in, its client."""
