"""The gate: budgets, a baseline, and the cost of a change.

    config     graphmem.toml or [tool.graphmem]: named targets, their arguments and their limits
    lock       graphmem.lock, the baseline: exact bytes by target, phase, category and module
    jobs       the analyses, in parallel processes or on a cluster, each cached by content
    compare    a measurement against its limits and its baseline: findings, and what grew
    check      all of it together, for `graphmem check`
    diff       two reports, matched by module and operation
    formats    a check's outcome for people, CI systems and code hosts

It reads only reports, not traces or graphs.
"""
