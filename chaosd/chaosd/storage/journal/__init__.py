"""The durable agreement log: term, vote, entries, snapshot, incarnation; fsynced before anybody hears of them."""
