"""The data model: recordings and ranges."""
