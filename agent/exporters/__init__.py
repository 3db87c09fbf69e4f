"""A report as text, JSON, page, metrics and log. None of them decides or changes anything."""
