"""The nouns: recordings and ranges."""
