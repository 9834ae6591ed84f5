"""The live page in a browser: it follows its run without being loaded again, and leaves nothing
behind.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from browser import full, status
from entrostat.logs.rollouts import save_rollouts
from watching import log, served, until

pytestmark = [
    pytest.mark.usefixtures("unrendered"),
    pytest.mark.allow_hosts(["127.0.0.1"]),
]


@pytest.fixture
def tab(browser):
    """Opens pages; fails where one wrote to the console, or asked another place than its server."""
    context = browser.new_context(viewport={"width": 1200, "height": 700})
    wrong, asked = [], []

    def opened(address):
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.evaluate("window.same = true")
        return page

    opened.wrong = wrong
    yield opened
    context.close()
    assert wrong == []
    paths = {re.sub(r"^http://127\.0\.0\.1:\d+", "", url) for url in asked
             if not url.startswith("data:")}  # fmt: skip
    assert {path.split("?")[0] for path in paths} <= {"/", "/state"}


def shows(page, iteration):
    """Waits until the page is that of an iteration; fails where it was loaded again for it."""
    facts = page.locator(".facts li", has_text=re.compile(rf"^iterations {iteration}\b"))
    facts.wait_for()
    assert page.evaluate("window.same") is True


def top(page, selector):
    return page.evaluate(f"document.querySelector('{selector}').getBoundingClientRect().top")


def test_a_page_follows_its_run_and_a_reader_keeps_the_place(tab, tmp_path):
    run = tmp_path / "run"
    with served(run) as server:
        page = tab(server.address)
        assert page.get_by_text("Nothing has been read yet").is_visible()
        page.locator("#live-problem", has_text="neither a file nor a directory").wait_for()
        log(run, 1, 3)
        shows(page, 3)
        assert page.locator("#live-problem").text_content() == ""
        assert page.inner_text("#live-state").startswith("Live: iteration 3, written ")
        assert page.title() == "run on unknown task: run report"
        page.get_by_role("link", name="Settings").click()
        page.locator("summary", has_text="config.toml").click()
        page.set_viewport_size({"width": 1200, "height": 400})
        page.evaluate("document.getElementById('law').scrollIntoView()")
        page.evaluate("document.getElementById('live-pause').focus({ preventScroll: true })")
        before = top(page, "#law")
        assert page.evaluate("scrollY") > 0
        log(run, 4, 4)
        shows(page, 4)
        assert top(page, "#law") == pytest.approx(before, abs=1)
        assert page.url == f"{server.address}#settings"
        opened = page.locator("details").evaluate_all("all => all.map(one => one.open)")
        assert opened == [True, False]
        assert page.evaluate("document.activeElement.id") == "live-pause"
        # what cannot be read is said, and what was read stays
        kept = (run / "metrics.jsonl").read_text()
        (run / "metrics.jsonl").write_text('{"iteration"')
        problem = page.locator("#live-problem", has_text="no whole line")
        problem.wait_for()
        assert "Shown is what was read before." in problem.inner_text()
        shows(page, 4)
        (run / "metrics.jsonl").write_text(kept)
        log(run, 5, 5)
        shows(page, 5)
        page.close()


@pytest.mark.long
def test_a_reader_may_pause_and_select(tab, tmp_path):
    log(tmp_path, 1, 1)
    with served(tmp_path) as server:
        until(server.watcher, lambda s: not s.waits)
        page = tab(server.address)
        shows(page, 1)
        page.get_by_role("button", name="Pause").click()
        log(tmp_path, 2, 2)
        page.locator("#live-state", has_text="a newer page waits").wait_for()
        shows(page, 1)
        page.get_by_role("button", name="Go on").click()
        shows(page, 2)
        page.locator("h1").select_text()
        log(tmp_path, 3, 3)
        page.locator("#live-state", has_text="waits while text is selected").wait_for()
        shows(page, 2)
        page.evaluate("getSelection().removeAllRanges()")
        shows(page, 3)
        # a page with other scripts than this one may run is loaded, not put in its place
        page.evaluate("document.querySelector('meta[http-equiv]').content = 'img-src data:'")
        log(tmp_path, 4, 4)
        page.locator(".facts li", has_text="iterations 4").wait_for()
        assert page.evaluate("window.same") is None
        page.close()  # before the server: it would go on asking


def test_runs_that_appear_and_the_end_of_the_server(tab, tmp_path):
    with served(tmp_path) as server:
        page = tab(server.address)
        for count, name in enumerate(("one", "two"), 1):
            log(tmp_path / name, 1, 3)
            page.locator(".kind", has_text=f"Comparison of {count} run").wait_for()
            page.locator("tbody th", has_text=name).first.wait_for()
        assert page.locator("a[href*='report.html']").count() == 0  # no path leads to a file
    page.locator("#live-problem", has_text="No connection to entrostat watch").wait_for()
    assert page.evaluate("window.same") is True
    page.close()
    assert all("ERR_" in words for words in tab.wrong)  # the browser's own words about it
    tab.wrong.clear()


def test_the_token_in_a_browser(tab, tmp_path):
    log(tmp_path, 1, 1)
    with served(tmp_path, token=True) as server:
        until(server.watcher, lambda s: not s.waits)
        bare = server.address.split("?")[0]
        page = tab(bare)
        assert page.get_by_text("This page needs the address with its token").is_visible()
        page.goto(server.address)
        page.wait_for_url(bare)
        page.evaluate("window.same = true")
        shows(page, 1)
        assert page.evaluate("document.cookie") == ""
        log(tmp_path, 2, 2)
        shows(page, 2)
        other = tab(bare)  # the cookie is kept
        shows(other, 2)
        page.close()  # before the server: they would go on asking
        other.close()
    # the browser's own words about the first page and its icon, which may come late
    tab.wrong[:] = [words for words in tab.wrong if "403 (Forbidden)" not in words]


@pytest.mark.long
def test_a_new_token_view_takes_the_place_of_the_old(tab, tmp_path):
    def dump(i):
        save_rollouts(full(i), tmp_path / "rollouts")
        log(tmp_path, i, i)

    log(tmp_path, 0, 0)
    with served(tmp_path) as server:
        until(server.watcher, lambda s: not s.waits)
        page = tab(server.address)
        shows(page, 0)
        dump(1)
        page.locator("#token-view").wait_for()
        page.select_option("#tv-filter", "right")
        page.fill("#tv-search", "prompt 7")
        page.check("#tv-shade input[value=advantage]")
        search = page.locator("#tv-search")
        assert status(page) == "2 of 45 rollouts"  # 35 to 39, those that 3 divides: 36, 39
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        # a function that the browser compiles anew, some calls in, keeps what it last closed over
        for _ in range(10):
            page.evaluate("window.entrostat.mount()")
        counts = []
        for i in range(2, 6):
            dump(i)
            page.locator(f"#tv-iteration option >> nth={i - 1}").wait_for(state="attached")
            assert page.evaluate("window.same") is True
            assert status(page) == "2 of 45 rollouts"
            assert page.is_checked("#tv-shade input[value=advantage]")
            assert page.evaluate("document.activeElement.value") == "advantage"
            assert page.inner_text("#tv-iteration option:checked") == str(i)  # the newest
            assert page.locator("#token-static").count() == 0
            counts.append(heap(session)[1:])
        assert counts[-1] == counts[1]  # listeners, documents: none is left behind
        search.press("Home")
        dump(6)
        page.locator("#tv-iteration option >> nth=5").wait_for(state="attached")
        search_is = "[document.activeElement.id, document.activeElement.selectionEnd]"
        assert page.evaluate(search_is) == ["tv-search", 0]
        # what has not changed is not touched
        page.evaluate("document.getElementById('rollouts').mark = 1")
        log(tmp_path, 7, 7)
        shows(page, 7)
        assert page.evaluate("document.getElementById('rollouts').mark") == 1
        page.close()


def heap(session):
    """Bytes in use of the page's heap after its garbage is collected; listeners; documents."""
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    return found["JSHeapUsedSize"], found["JSEventListeners"], found["Documents"]


@pytest.mark.slow
@pytest.mark.rendered
@pytest.mark.timeout(7200)
def test_150_iterations_leave_nothing_behind(tab, tmp_path):
    """With rollouts dumped every tenth; the server is a process of its own, its figures drawn."""
    run = tmp_path / "run"
    words = [sys.executable, "-m", "entrostat", "watch", str(run), "--port", "0", "--every", "0.1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as process:
        check_150_iterations(tab, run, process)


def check_150_iterations(tab, run, process):
    server = psutil.Process(process.pid)
    measured = []
    try:
        page = tab(process.stdout.readline().split(": ")[1].strip())
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        for i in range(1, 151):
            if i % 10 == 1:
                save_rollouts(full(i), run / "rollouts")
            log(run, i, i)
            page.locator(".facts li", has_text=re.compile(rf"^iterations {i}\b")).wait_for()
            if i % 10 == 0:
                memory = server.memory_info().rss / 1e6
                open_files = len(server.net_connections()), server.num_fds(), server.num_threads()
                measured.append((i, memory, heap(session), *open_files))
                print(*measured[-1], flush=True)
        assert page.evaluate("window.same") is True
        page.close()
        time.sleep(3)
        left = [c for c in server.net_connections() if c.status == "ESTABLISHED"]
        process.terminate()
        _, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    assert (process.returncode, errors, left) == (-signal.SIGTERM, "", [])
    by = {row[0]: row for row in measured}
    assert by[150][1] < by[50][1] + 40  # MB of the server
    assert by[150][2][0] < by[50][2][0] + 3e6  # bytes of the page's heap
    assert by[150][2][1:] == by[50][2][1:]  # listeners, documents
    assert by[150][3:] == by[50][3:]  # sockets, files, threads
