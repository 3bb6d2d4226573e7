"""The transfer of state with bytes: as a source, and as a joiner."""
