def write_run_report(p, o=None):
    return p
