"""The rounds of one site: when one opens, what this site gives to it, what its worker is told."""
