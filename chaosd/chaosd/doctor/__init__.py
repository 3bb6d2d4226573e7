"""`chaosd doctor`: looks at everything that commonly keeps a site from working, and says the remedy."""
