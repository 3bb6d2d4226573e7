"""Execution plans: which worker holds which layers, where micro-batches go, in which rounds gradients are exchanged.

`layout` is the data, `checks` says what makes it valid, `execution` is a layout that has passed, `colouring` chooses
the rounds of the gradients' exchange. Made by `search` or by an operator; read by everything below.
"""
