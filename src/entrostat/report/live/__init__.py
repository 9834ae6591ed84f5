"""The page of runs that go on.

`files` sees that something was written, `reading` and `watcher` keep the page, `server` and `gate`
serve it, and live.js, in a browser, puts the new one in the old one's place.
"""
