"""Every order in which things can happen on a small node: does cleaning ever take an address that somebody has?"""
