"""The figures of docs/figures.md: short programs, each of which prints one section of it."""
