"""How random inputs for a twin are made: one declaration for each function of the package that has a twin.

One module for each file of the package, each with ``INPUTS``: {full name of the function: ``twins.Inputs``}.
"""
