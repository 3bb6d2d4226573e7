"""Seconds and bytes of the parts of a step, from facts, and the papers' closed forms for comparison.

`durations` is the one place where a duration is computed, so that estimates, search and simulators agree in every bit;
`formulas` has formulas 8 to 14 of Chameleon as printed.
"""
