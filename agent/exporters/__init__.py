"""Outputs of a report: text, JSON, page, metrics, log. None of them decides anything or changes the node."""
