"""What the checks of Kairos cost, which of them are due, and whether they can be trusted.

`acceptance` runs the parts that are too long for the gate and lists those that are due; `gate`
reports what a run of `.ci/run` cost; `repeat` runs the tests beside busy processes, and the slowest
tests many times; `mutants` draws small faults in the product and sees whether tests notice
them. Their records are lines of JSON in `docs/quality/`.
"""
