"""The token view in a browser: what a reader sees, and does with the pointer or keys alone.

The rollouts are made here, of small formulas, so that every expected text, colour and count is
known without the code under test.
"""

import io
import itertools
import json
import math
import os
import re

import pytest
import torch

from browser import (
    EVIL,
    HOSTILE,
    SHADES,
    WORDS,
    full,
    length,
    mean,
    reward,
    shown,
    status,
    text,
    texts_only,
    total,
    value,
    write_page,
)
from entrostat.logs.rollouts import Rollouts, save_rollouts
from entrostat.report import write_comparison

BLUE, ORANGE, FULL = "0, 114, 178", "230, 159, 0", 0.62


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    for rollouts in (full(1, analysed=False), texts_only(2), full(3)):
        save_rollouts(rollouts, path / "rollouts")
    return write_page(path)


@pytest.fixture(scope="module")
def tab(browser):
    page = browser.new_page()
    page.set_default_timeout(60_000)
    return page


@pytest.fixture
def page(tab, report):
    """The page, opened; fails where it wrote to the console, or asked for anything but itself."""
    page = tab
    page.set_viewport_size({"width": 1280, "height": 720})
    page.emulate_media(color_scheme="light")
    wrong, asked = [], []
    listeners = {
        "console": lambda message: wrong.append(message.text),
        "pageerror": lambda error: wrong.append(str(error)),
        "request": lambda request: asked.append(request.url),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(report.as_uri())
    page.uncheck("#tv-group")  # one after another, as they are in the batch
    yield page
    assert wrong == []
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
    assert page.evaluate("typeof window.hacked") == "undefined"
    for event, listener in listeners.items():
        page.remove_listener(event, listener)


def walk(page):
    """Rollouts of all pages of the list."""
    found = shown(page)
    while page.get_attribute("#tv-next", "aria-disabled") == "false":
        page.click("#tv-next")
        found += shown(page)
    return found


def colours(page, i):
    row = page.locator(f'#tv-list > li[data-number="{i + 1}"]')
    return row.locator(".tok").evaluate_all(
        "tokens => tokens.map(t => getComputedStyle(t).backgroundColor)"
    )


def expected(name, i, j):
    """Red, green and blue, and how opaque."""
    x = value(name, i, j)
    if math.isnan(x) or x == 0:
        return None, 0.0
    return ORANGE if x > 0 else BLUE, abs(x) / SHADES[name] * FULL


def check_colours(page, name, rollouts):
    for i in rollouts:
        there = colours(page, i)
        assert len(there) == length(i)
        for j, colour in enumerate(there):
            rgb, alpha = expected(name, i, j)
            parts = re.findall(r"[\d.]+", colour)
            assert float(parts[3]) == pytest.approx(alpha, abs=0.006), (name, i, j)
            assert rgb is None or ", ".join(parts[:3]) == rgb


def test_each_shade_shows_its_figure(page):
    assert page.locator("#token-static").count() == 0
    assert page.input_value("#tv-iteration") == "2"  # the last one
    seen = set()
    for name in ("entropy", "change", "influence", "advantage"):
        page.check(f"#tv-shade input[value={name}]")
        check_colours(page, name, range(12))
        seen.add(tuple(colours(page, 3)))
    assert len(seen) == 4
    page.check("#tv-shade input[value=change]")
    assert text(page, "#tv-low") == "-0.00200 nats or less"
    assert page.inner_text("#tv-high") == "+0.00200 nats or more"
    page.check("#tv-shade input[value=advantage]")
    assert page.inner_text("#tv-high") == "+2.000 or more"  # no unit
    page.check("#tv-shade input[value=entropy]")
    assert (page.inner_text("#tv-low"), page.inner_text("#tv-high")) == ("0", "1.000 nats or more")


def test_dark_shades_leave_the_text_readable(page):
    def luminance(rgb):
        parts = [c / 255 for c in rgb]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    page.check("#tv-shade input[value=advantage]")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        ground, ink = (
            [float(x) for x in re.findall(r"[\d.]+", colour)]
            for colour in page.evaluate(
                "[getComputedStyle(document.getElementById('tv-list')).backgroundColor,"
                " getComputedStyle(document.body).color]"
            )
        )
        for i in (0, 3):
            colour = [float(x) for x in re.findall(r"[\d.]+", colours(page, i)[0])]
            assert colour[3] > 0.5  # the strongest of its kind
            mixed = [
                colour[3] * c + (1 - colour[3]) * g
                for c, g in zip(colour[:3], ground[:3], strict=True)
            ]
            light, dark = sorted((luminance(mixed), luminance(ink)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5  # WCAG AA
        inks = page.locator("#tv-list .tok").evaluate_all(
            "tokens => [...new Set(tokens.map(t => getComputedStyle(t).color))]"
        )
        assert inks == [page.evaluate("getComputedStyle(document.body).color")]


def test_a_dump_without_figures_is_plain_text(page):
    page.check("#tv-shade input[value=influence]")
    page.select_option("#tv-iteration", label="2")
    assert page.locator(".tok").count() == 0
    assert page.locator("#tv-list .tv-completion").all_inner_texts() == [
        "plain <b>text</b>", "other [U+202E]text",
    ]  # fmt: skip
    assert page.locator("#tv-shade input:disabled").count() == 4
    assert not page.is_visible("#tv-legend")
    assert "reward —" in page.inner_text("#tv-list")
    assert page.locator("#tv-filter option:disabled").count() == 2

    page.select_option("#tv-iteration", label="1")  # entropies and advantages, not analysed
    off = page.locator("#tv-shade input:disabled").evaluate_all("all => all.map(r => r.value)")
    assert off == ["change", "influence"]
    assert page.is_checked("#tv-shade input[value=entropy]")
    check_colours(page, "entropy", [0, 1])
    # what this iteration lacks is grey, a choice that lacks one entry is not
    ink, soft = (
        page.evaluate(f"getComputedStyle(document.querySelector('label:has({which})')).opacity")
        for which in ("#tv-sort", "input[value=influence]")
    )
    assert (ink, float(soft) < 1) == ("1", True)
    assert page.locator("#tv-sort option:disabled").all_inner_texts() == ["sum of |influence|"]
    page.select_option("#tv-iteration", label="3 (analysed)")
    assert page.is_checked("#tv-shade input[value=influence]")  # as was wanted
    check_colours(page, "influence", [0, 1])


def test_right_and_wrong_are_counted(page):
    assert status(page) == "45 of 45 rollouts; shown: 1 to 20"
    assert walk(page) == list(range(45))
    assert status(page) == "45 of 45 rollouts; shown: 41 to 45"
    for kind, reward_is, count in (("right", 1.0, 15), ("wrong", 0.0, 29)):
        page.select_option("#tv-filter", kind)
        assert status(page).startswith(f"{count} of 45 rollouts")
        assert walk(page) == [i for i in range(45) if reward(i) == reward_is]


def test_search_looks_in_prompts_and_completions(page):
    page.fill("#tv-search", "pROMPT 7")
    assert status(page) == "5 of 45 rollouts"
    assert shown(page) == [35, 36, 37, 38, 39]
    page.fill("#tv-search", "quattro cinque")  # over two tokens
    want = [
        i for i in range(45)
        if i != EVIL and any(1 + (i + j) % 6 == 4 for j in range(length(i) - 2))
    ]  # fmt: skip
    assert walk(page) == want
    page.fill("#tv-search", "<eos>")  # the end is no part of the completion
    assert status(page) == "No rollout of 45 matches."
    assert shown(page) == []
    page.fill("#tv-search", "window.hacked")
    assert shown(page) == [EVIL]
    page.select_option("#tv-filter", "right")
    assert shown(page) == []


def test_sorting(page):
    figures = {"reward": reward, "length": length, "entropy": lambda i: mean("entropy", i),
               "influence": lambda i: total("influence", i)}  # fmt: skip
    for key, up in itertools.product(figures, (False, True)):
        figure = figures[key]
        page.select_option("#tv-sort", key)
        page.set_checked("#tv-up", up)
        order = walk(page)
        assert sorted(order) == list(range(45))
        if key == "reward":
            assert order[-1] == 44  # unknown, last either way
            order = order[:-1]
        values = [figure(i) for i in order]
        differences = [b - a if up else a - b for a, b in itertools.pairwise(values)]
        assert min(differences) > -1e-6 * max(map(abs, values))
    page.select_option("#tv-sort", "order")
    assert walk(page) == list(range(45))


def figures(page):
    assert page.is_visible("#tv-tip")
    names = page.locator("#tv-tip dt").all_inner_texts()
    values = [v.replace("\u2212", "-") for v in page.locator("#tv-tip dd").all_inner_texts()]
    return dict(zip(names, values, strict=True))


def test_a_token_shows_its_figures(page):
    page.hover('#tv-list > li[data-number="2"] .tok >> nth=2')  # rollout 1, place 2
    assert figures(page) == {
        "probability": "0.368", "log-prob": "-1.000", "sampler\u2019s log-prob": "-1.500",
        "entropy": "0.200", "change of entropy": "-0.00200",
        "influence": "+2.00e-5", "advantage": "-1.000",
    }  # fmt: skip
    assert "token 3 of 4, id 4" in page.inner_text("#tv-tip")
    page.hover("h1")
    assert not page.is_visible("#tv-tip")
    page.hover('#tv-list > li[data-number="1"] .tok >> nth=1')
    assert figures(page)["entropy"] == "—"  # unknown, and unshaded: see the colours above


def test_keys_alone_are_enough(page):
    def here():
        return page.evaluate("document.activeElement.id || document.activeElement.className")

    def at():
        return page.evaluate(
            "(e => [e.closest('li').dataset.number, e.dataset.i])(document.activeElement)"
        )

    page.focus("#tv-iteration")
    order = []
    for _ in range(7):
        page.keyboard.press("Tab")
        order.append(here())
    # the shades are one stop; "smallest first" is off in the batch's own order
    assert order[1:] == [
        "tv-filter", "tv-sort", "tv-group", "tv-search", "tv-previous", "tv-next",
    ]  # fmt: skip
    page.keyboard.press("Enter")
    assert status(page).endswith("shown: 21 to 40")
    assert here() == "tv-next"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert status(page).endswith("shown: 1 to 20")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert at() == ["1", "0"]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.get_attribute(":focus", "aria-describedby") == "tv-tip"
    assert page.get_attribute(":focus", "aria-selected") == "true"
    assert "token 1 of 3" in page.inner_text("#tv-tip")
    page.keyboard.press("ArrowRight")
    assert at() == ["1", "1"]
    assert figures(page)["entropy"] == "—"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")  # stays at the first
    assert at() == ["1", "0"]
    page.keyboard.press("End")
    assert at() == ["1", "2"]
    page.keyboard.press("Escape")
    assert not page.is_visible("#tv-tip")
    page.keyboard.press("Tab")  # one stop a completion
    assert at() == ["2", "0"]
    page.keyboard.press("Shift+Tab")
    assert at() == ["1", "2"]  # where it was
    # rollout 4 is [5, 6, 1, 2, 3, 4, end]: "cinque↵" breaks the line after it
    page.focus('#tv-list > li[data-number="5"] .tok >> nth=0')
    page.keyboard.press("ArrowDown")
    assert at() == ["5", "1"]
    page.keyboard.press("ArrowUp")
    assert at() == ["5", "0"]


def test_hostile_text_is_text(page):
    row = page.locator(f'#tv-list > li[data-number="{EVIL + 1}"]')
    assert row.locator(".tok").all_text_contents() == [
        *HOSTILE[:4], "[U+202E]live", "[U+D800]", "␀", "[U+2028]", "<eos>",
    ]  # fmt: skip
    assert row.locator("script, img").count() == 0
    assert page.locator("script").count() == 2  # the rollouts, and the page's own


def test_the_policy_stops_any_other_script(browser, report):
    page = browser.new_page()
    stopped = []
    page.on("console", lambda message: stopped.append(message.text))
    page.goto(report.as_uri())
    page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
        " document.body.append(s); document.body.setAttribute('onclick', 'window.hacked = 1');"
        " document.body.click(); }"
    )
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert len(stopped) == 2
    assert all("Content Security Policy" in text for text in stopped)
    page.close()


def test_without_javascript_a_sample_is_there(browser, report):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.is_visible("#token-static")
    assert not page.is_visible("#token-view")
    assert page.locator("#token-static tbody tr").count() == 8
    context.close()


def test_a_narrow_window_does_not_scroll_sideways(page):
    page.set_viewport_size({"width": 360, "height": 700})
    page.focus("#tv-list .tok >> nth=0")
    page.keyboard.press("End")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    box = page.locator("#tv-tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360


@pytest.mark.long
def test_a_run_of_150_iterations_is_small_and_usable(browser, tmp_path):
    R, T = 256, 300
    n = R * T
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(6, n, generator=generator).abs()
    rollouts = Rollouts(
        1, [f"Prompt {i // 8}" for i in range(R)], [f"answer {i}" for i in range(R)],
        torch.tensor([float(i % 2) for i in range(R)]), torch.arange(R, dtype=torch.int32) // 8,
        torch.ones(R, dtype=torch.bool), torch.ones(R, dtype=torch.bool),
        torch.arange(0, n + 1, T), torch.randint(0, 3000, (n,), generator=generator).int(),
        -random[0], -random[1], random[2], random[3],
        {k: f"w{k} " for k in range(3000)}, random[4], random[5],
    )  # fmt: skip
    save_rollouts(rollouts, tmp_path / "rollouts")
    (dump,) = (tmp_path / "rollouts").iterdir()
    for i in range(2, 151):
        os.link(dump, dump.with_stem(f"{i:06d}"))
    report = write_page(tmp_path)
    assert report.stat().st_size < 15_000_000
    page = browser.new_page()
    page.set_default_timeout(60_000)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(report.as_uri())
    iterations = page.locator("#tv-iteration option").all_inner_texts()
    assert iterations[0] == "1"
    assert iterations[-1] == "150"
    assert len(iterations) >= 3
    assert f"{len(iterations)} of the 150 dumped" in page.inner_text("section:has(#token-view)")
    page.select_option("#tv-iteration", label="1")
    all_of_it = re.match(r"(\d+) of \1 \(of 256 of the iteration\) rollouts", status(page))
    assert int(all_of_it[1]) >= 32
    page.select_option("#tv-filter", "right")
    page.fill("#tv-search", "prompt 0")
    assert len(shown(page)) == 4  # of a group all or none are on the page
    assert page.locator("#tv-list .tok").count() == 300 * len(shown(page))
    assert wrong == []
    page.close()


def test_a_page_opens_on_an_analysed_iteration_and_marks_them(browser, tmp_path):
    for i in range(1, 6):
        save_rollouts(full(i, analysed=i in (1, 4)), tmp_path / "rollouts")
    page = browser.new_page()
    page.goto(write_page(tmp_path).as_uri())
    assert page.locator("#tv-iteration option").all_inner_texts() == [
        "1 (analysed)", "2", "3", "4 (analysed)", "5",
    ]  # fmt: skip
    assert page.input_value("#tv-iteration") == "3"  # the fourth
    page.check("#tv-shade input[value=change]")
    page.close()


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two runs with what a table has columns for."""
    path, runs = tmp_path_factory.mktemp("comparison"), []
    for name in ("one", "two"):
        (path / name).mkdir()
        lines = [{"iteration": i, "entropy/exact": 1 / i, "reward/mean": i / 9} for i in (1, 2, 3)]
        (path / name / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
        runs.append(path / name)
    return write_comparison(runs, path / "c.html")


def pixels(locator):
    """[height, width] lightness of what is on the screen, 0 to 1."""
    from matplotlib.image import imread

    return imread(io.BytesIO(locator.screenshot()))[..., :3].mean(-1)


def test_figures_follow_the_page_into_the_dark(browser, comparison):
    page = browser.new_page()
    for scheme, ground in (("light", (0.95, 1)), ("dark", (0, 0.2))):
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{comparison.as_uri()}#pictures=1")
        figure = pixels(page.locator("figure img").first)
        assert ground[0] <= figure[2, 2] <= ground[1]  # a corner: the card's own colour
        words = figure[:, : figure.shape[1] // 12]  # beside the axis; no grid is there
        assert words.max() > 0.55 if scheme == "dark" else words.min() < 0.45
        card = pixels(page.locator("figure figcaption").first)
        assert figure[2, 2] == pytest.approx(float(card[0, 0]), abs=0.02)
    page.close()


def test_every_column_can_be_reached_at_420_pixels(browser, comparison):
    page = browser.new_page(viewport={"width": 420, "height": 800})
    page.goto(comparison.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    table = page.locator('.scroll[aria-label="Results table"]')
    edge = pixels(table)[:, -10:-2].mean()
    assert edge < 0.93  # a shadow lies over the side where columns are out of sight
    table.focus()
    table.evaluate("box => box.scrollLeft = box.scrollWidth")
    page.wait_for_timeout(100)
    last, first = table.locator("thead th").last, table.locator("tbody th").first
    for cell in (last, first):  # the last column, and still whose it is
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 420
    assert pixels(table)[:, -10:-2].mean() > edge
    page.close()


def test_what_an_environment_said_is_greyed(browser, tmp_path):
    """Of rollout 0, `uno dos tres`, the second token; nothing of rollout 1."""
    tokens = torch.tensor([1, 2, 3, 1], dtype=torch.int32)
    own = torch.tensor([True, False, True, True])
    figure = torch.where(own, 0.5, torch.nan)
    rollouts = Rollouts(
        1, ["Say it", "Say it"], ["uno dos tres ", "uno "], torch.tensor([1.0, 0.0]),
        torch.zeros(2, dtype=torch.int32), torch.tensor([False, True]),
        torch.ones(2, dtype=torch.bool), torch.tensor([0, 3, 4]), tokens,
        -figure, -2 * figure, figure, 3 * figure, dict(enumerate(WORDS)), sampled=own,
    )  # fmt: skip
    save_rollouts(rollouts, tmp_path / "rollouts")
    path = write_page(tmp_path)
    static = path.read_text()
    assert static.count('class="observed"') == 1
    assert re.search(r'class="observed"[^>]*title="said by the environment[^>]*>dos <', static)
    assert static.count(">not over: its turns or its context ran out<") == 1
    page = browser.new_page()
    page.goto(path.as_uri())
    first = page.locator('#tv-list > li[data-number="1"]')
    assert first.locator(".tok.observed").all_inner_texts() == ["dos "]
    assert page.locator("#tv-list .tok.observed").count() == 1
    facts = first.locator(".tv-facts li").all_inner_texts()
    assert "2 tokens" in facts
    assert "1 token of its environment" in facts
    assert "not over: its turns or its context ran out" in facts
    assert "rollout 1, group 1" in facts
    assert "advantage 1.500" in facts  # mean of its two own tokens, 3 x .5 each
    assert first.locator(".tv-turn").all_inner_texts() == ["policy", "environment", "policy"]
    assert page.locator(".tv-turn").count() == 3  # none where the policy alone speaks
    first.locator(".tok").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.inner_text(":focus") == "dos "
    page.keyboard.press("Home")
    assert page.inner_text(":focus") == "uno "
    first.locator(".tok.observed").hover()
    assert "Said by the environment" in page.inner_text("#tv-tip")
    assert page.locator("#tv-tip dt").count() == 0
    page.close()
