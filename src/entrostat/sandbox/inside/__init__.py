"""Code of the interpreter that forks programs; it imports the standard library alone.

The host starts it as `python -S -P` and exchanges frames with it (`frames`). It forks a program
(`start`), which enters namespaces (`jail`) or a filter, watches it (`watch`), and reports the
result (`zygote`). A forked process runs a program, serves a session (`bodies`), or runs tests
(`judge`).
"""
