"""The figures of docs/figures.md, each measured together with its baseline, so that machine load affects both."""
