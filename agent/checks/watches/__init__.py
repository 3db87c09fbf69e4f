"""What an API server's watch streams replay."""
