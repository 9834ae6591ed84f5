"""The page of runs that go on.

`watcher` keeps the page, `server` serves it, and live.js, in a browser, puts
the new one in the old one's place.
"""
