"""The texts of causes, by where a site is when it meets them: what is told, whom it waits for, what to do.

Used by `causes.py` alone, where each has its name; docs/when-something-stands.md is made from them. Their type is
written out at each, since the compiled simulator (mypyc) does not infer it from one module to the next.
"""
