"""Everyday changes on the real node, for hours: does a daemon beside them report anything that was not provoked?"""
