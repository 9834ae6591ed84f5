"""What runs in the interpreter that forks programs: the standard library alone, nothing of ours.

The host starts it as `python -S -P` and speaks to it in frames (`frames`). It forks a program
(`start`), which goes into namespaces (`jail`) or behind a filter, watches it (`watch`) and says
what became of it (`zygote`). What a forked process does: run a program, serve a session (`bodies`),
judge by tests (`judge`).
"""
