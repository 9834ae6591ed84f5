"""The page of runs that go on.

`reading` and `watcher` keep the page, `server` and `auth` serve it, and live.js, in a browser, puts
the new one in the old one's place.
"""
