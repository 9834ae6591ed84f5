"""The page of runs that are still in progress.

`watcher` updates the page, `server` serves it, and live.js, in a browser, replaces the old page by
the new one.
"""
