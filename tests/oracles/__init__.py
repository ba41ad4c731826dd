"""Specifications of C++ classes, in Python: short and slow, compared with the C++ in tests/unit/oracles.

A class here has the constructor and the methods of the C++ class that it specifies. It answers with the same
numbers, bit for bit: the operations on floating-point numbers come in the same order, and logarithms and
exponentials from the same C library. A change of the C++ that changes a result is made here first.
"""
