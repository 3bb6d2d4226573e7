"""The operator's page: what `chaosd status`, `chaosd events` and the metrics say, live, in a browser beside it."""
