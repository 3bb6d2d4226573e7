"""What is known before anything is planned: the model's layers, the devices, their rates, what fails how often.

`site` holds the types that everything else reads; they check themselves with `checks`. `models` has built-in ones,
`profiler` measures them on a real model (it alone imports torch), `failures` keeps a history for the mean time between
failures. Nothing decides here.
"""
