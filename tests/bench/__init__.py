"""The figures of docs/figures.md: each beside what it is compared with, in one run, so that a busy machine is fair."""
