"""Checks of the tests themselves: which faults in the product do they notice?"""
