"""Fuzzing through the entry function of the command line: hostile inputs, and what no run may do.

`python -m tests.fuzz` runs many inputs on all cores, `tests/test_fuzz.py` some of them in the
suite. Each input is made from the name of its target, a seed and its number alone, so one that went
wrong can be made again: `python -m tests.fuzz TARGET --seed N --only NUMBER`.

mutators  hostile text and values
targets   what is fuzzed: how an input is made, and the command that reads it
sandbox   runs one command line, where it can harm nothing
verdicts  what is wrong with a run
worker    a process that runs inputs
campaign  hands inputs to workers, and adds up what they found
"""
