"""Why pods wait for their sandbox."""
