"""The live parts of a page in a browser: curves, choices in the address, roles and names.

The runs are made of small formulas, so that every expected number is known without the code.
"""

from __future__ import annotations

import re
import time

import axe_playwright_python.sync_playwright as axe
import pytest

# the same rollouts, and no test where there is no browser
from browser import full, playwright, shown, status, text, write_page
from entrostat.logs.rollouts import save_rollouts
from entrostat.logs.run import read_run
from entrostat.report import write_comparison, write_report
from pages import make_run

N = 40


def entropy(run, i):
    return run + 1 / i


def lines(run, last=N):
    return [
        {"iteration": i, "entropy/exact": entropy(run, i), "reward/mean": i / 100,
         "kl/old_new": 10.0 ** (-i % 5), "optim/updates": 4, "flow/net": float((-1) ** i)}
        for i in range(1, last + 1)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Runs 1 and 2, and seeds 3 and 4 of one setting, which log 40 and 30 iterations."""
    path = tmp_path_factory.mktemp("comparison")
    runs = []
    for run, method, last in ((1, '"a"', N), (2, '"b"', N), (3, '"c"', N), (4, '"c"', 30)):
        made = make_run(path / f"r{run}", methods=method, lines=lines(run, last), evaluation=[])
        words = (made / "config.toml").read_text().replace("seed = 7", f"seed = {run}")
        (made / "config.toml").write_text(words)
        runs.append(made)
    return write_comparison(runs, path / "c.html", "Four runs")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A run with rollouts of three iterations, of which the third is analysed."""
    path = tmp_path_factory.mktemp("run")
    for rollouts in (full(1, analysed=False), full(2, analysed=False), full(3)):
        rollouts.prompts = [f"{p} of {rollouts.iteration}" if p == "Prompt 1" else p
                            for p in rollouts.prompts]  # fmt: skip
        save_rollouts(rollouts, path / "rollouts")
    write_page(path)
    (path / "metrics.jsonl").write_text(
        "".join(f'{{"iteration": {i}, "entropy/exact": {1 / i}}}\n' for i in (1, 2, 3))
    )
    (path / "analysis.jsonl").write_text('{"iteration": 3}\n')
    return write_report(read_run(path), path / "report.html")


@pytest.fixture(scope="module")
def tab(browser):
    tab = browser.new_page(viewport={"width": 1400, "height": 900})
    tab.set_default_timeout(60_000)
    return tab


@pytest.fixture
def at(tab):
    """Opens a page anew; afterwards nothing may have been written to the console."""
    wrong = []
    listeners = {
        "console": lambda message: wrong.append(message.text),
        "pageerror": lambda error: wrong.append(str(error)),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)

    def open_(path, hash_="", width=1400, scheme="light"):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        tab.goto("about:blank")
        tab.goto(path.as_uri() + hash_)
        return tab

    yield open_
    assert wrong == []
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)


def until(page, expression):
    """Wait for a truth of the page; Playwright's own wait evaluates text: the page forbids it."""
    end = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(20)


def table(page):
    """Name of each row -> its cells."""
    rows = page.locator("#ex-table tbody tr").all()
    return {
        row.locator("th").inner_text().strip(): [
            cell.replace("\u2212", "-") for cell in row.locator("td").all_inner_texts()
        ]
        for row in rows
    }


def words(value):
    return f"{value:.3f}"


def hash_of(page):
    page.wait_for_timeout(250)  # choices are written a moment later
    return page.evaluate("location.hash")


def plot(page, place=0):
    return page.locator(".ex-plot").nth(place)


# --- the curves


def test_the_table_says_the_last_values_and_those_at_the_pointer(at, comparison):
    page = at(comparison)
    assert page.inner_text("#ex-where") == "Last values"
    rows = table(page)
    assert list(rows) == ["a", "b", "c (2 seeds)"]
    assert rows["a"] == [words(1 + 1 / 40), "0.400"]
    # of seeds: mean, lowest and highest, where both have a value
    assert rows["c (2 seeds)"] == ["3.533 [3.033, 4.033]", "0.300 [0.300, 0.300]"]
    over = page.locator(".u-over").first
    box = over.bounding_box()
    over.hover(position={"x": box["width"] * 9 / 39, "y": 20})  # iterations 1 to 40
    assert page.inner_text("#ex-where") == "At iteration 10"
    assert table(page)["b"] == [words(2.1), "0.100"]
    assert [line for line in text(page, ".ex-tip >> nth=0").split("\n") if line] == [
        "At iteration 10", "c (2 seeds)", "3.600 [3.100, 4.100]", "b", "2.100", "a", "1.100",
    ]  # fmt: skip
    assert page.locator(".ex-tip:visible").count() == 1
    over.hover(position={"x": box["width"] * 35 / 39, "y": 20})
    assert table(page)["c (2 seeds)"] == ["—", "—"]  # iteration 36: one of them is over


def test_keys_alone_move_and_zoom(at, comparison):
    page = at(comparison)
    plot(page).focus()
    page.keyboard.press("Home")
    value = plot(page).get_attribute("aria-valuetext")
    assert value == "At iteration 1: c (2 seeds) 4.500 [4.000, 5.000], b 3.000, a 2.000"
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("PageUp")
    assert plot(page).get_attribute("aria-valuenow") == "13"
    assert page.inner_text("#ex-where") == "At iteration 13"
    page.keyboard.press("+")  # half of 0 to 40, about 13
    assert (page.input_value("#ex-from"), page.input_value("#ex-to")) == ("3", "23")
    page.keyboard.press("End")
    assert plot(page).get_attribute("aria-valuenow") == "23"
    assert page.evaluate("document.activeElement.className") == "ex-plot"
    page.keyboard.press("0")
    assert (page.input_value("#ex-from"), page.input_value("#ex-to")) == ("", "")
    page.keyboard.press("Escape")
    assert page.inner_text("#ex-where") == "Last values"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_dragging_zooms_and_a_double_click_shows_all(at, comparison):
    page = at(comparison)
    over = page.locator(".u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    places = [box["x"] + box["width"] * (i - 1) / 39 for i in (11, 31)]
    page.mouse.move(places[0], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(places[1], box["y"] + 60, steps=4)
    page.mouse.up()
    zoom = [float(page.input_value(f"#ex-{name}")) for name in ("from", "to")]
    assert zoom == [pytest.approx(11, abs=0.1), pytest.approx(31, abs=0.1)]
    assert plot(page, 1).get_attribute("aria-valuemax") == "30"  # of all charts
    page.locator(".u-over").nth(1).dblclick()
    assert page.input_value("#ex-from") == ""


def test_smoothing_is_the_centred_mean(at, comparison):
    page = at(comparison)
    page.locator("#ex-smooth").focus()
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#ex-smooth-is") == "mean of 3 points"
    plot(page).focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert table(page)["a"][0] == words(1 + (1 + 1 / 2 + 1 / 3) / 3)
    page.keyboard.press("Home")
    assert table(page)["a"][0] == words(1 + (1 + 1 / 2) / 2)  # shorter at the ends
    assert hash_of(page) == "#smooth=3"


def test_charts_are_chosen_added_and_removed(at, comparison):
    page = at(comparison)
    assert page.locator(".ex-card").count() == 2
    groups = page.locator(".ex-head select >> nth=0 >> optgroup").evaluate_all(
        "all => all.map(group => group.label)"
    )
    assert groups == ["entropy", "reward", "flow", "kl"]
    assert page.locator("#explore details").inner_text() == "Left out: 1 metric that never changes"
    page.click("#ex-add")
    select = page.locator(".ex-head select").nth(2)
    assert page.evaluate("document.activeElement.ariaLabel") == "Metric of chart 3"
    select.select_option("flow/net")
    page.locator(".ex-card").nth(2).get_by_label("log axis").check()
    assert "Logarithmic on both sides of 0." in page.inner_text(".ex-card >> nth=2")
    select.select_option("kl/old_new")
    page.locator(".ex-card").nth(2).get_by_label("log axis").check()
    assert "Logarithmic" not in page.inner_text(".ex-card >> nth=2")
    assert table(page)["a"] == ["1.025", "0.400", "1.000"]
    page.get_by_role("button", name="remove chart 1").click()
    assert page.locator(".ex-card").count() == 2
    assert hash_of(page) == "#log=flow/net&log=kl/old_new&metric=reward/mean&metric=kl/old_new"


def test_a_run_is_hidden_and_shown(at, comparison):
    page = at(comparison)
    box = page.get_by_role("checkbox", name="b", exact=True)
    box.uncheck()
    assert "b 2" not in plot(page).get_attribute("aria-valuetext")
    assert plot(page).get_attribute("aria-valuetext").count(",") == 2  # a; c with its range
    assert table(page)["b"][0] == "2.025"  # what it was is still said
    assert page.evaluate("document.activeElement.type") == "checkbox"  # and where one was
    page.get_by_role("button", name="hide all runs").click()
    assert page.locator(".uplot").count() == 0
    assert "Nothing to draw" in page.inner_text(".ex-card >> nth=0")
    page.get_by_role("button", name="show all runs").click()
    assert page.locator(".uplot").count() == 2
    page.uncheck("#ex-seeds")  # seeds on their own
    assert table(page)["c (2 seeds)"][0] == "3.529 [3.025, 4.033]"  # each one's last


def test_updates_are_an_axis_where_they_are_logged(at, comparison):
    page = at(comparison)
    options = page.locator("#ex-x option").all_inner_texts()
    assert options == ["iteration", "updates"]
    page.select_option("#ex-x", "updates")
    plot(page).focus()
    page.keyboard.press("Home")
    assert page.inner_text("#ex-where") == "At update 4"


# --- choices in the address


def test_the_address_brings_the_choices_back(at, comparison):
    page = at(comparison)
    page.locator(".ex-head select").nth(1).select_option("kl/old_new")
    page.locator(".ex-card").nth(1).get_by_label("log axis").check()
    page.get_by_role("checkbox", name="b", exact=True).uncheck()
    page.fill("#ex-to", "20")
    page.press("#ex-to", "Enter")
    chosen = hash_of(page)
    assert chosen == "#metric=entropy/exact&metric=kl/old_new&log=kl/old_new&hide=b&to=20"
    page = at(comparison, chosen)
    assert not page.is_checked("#ex-table tbody tr:nth-child(2) input")
    assert page.input_value("#ex-to") == "20"
    assert page.locator(".ex-card").nth(1).get_by_label("log axis").is_checked()
    assert hash_of(page) == chosen
    # a link of the page keeps them, and the address leads to both
    page.click('nav.contents a[href="#settings"]')
    assert hash_of(page) == f"#settings&{chosen[1:]}"
    page = at(comparison, f"#settings&{chosen[1:]}")
    assert page.evaluate("scrollY") > 0
    assert page.input_value("#ex-to") == "20"
    # another address in the same tab is another choice
    page.evaluate("location.hash = '#smooth=5'")
    playwright.expect(page.locator("#ex-to")).to_have_value("")
    assert page.inner_text("#ex-smooth-is") == "mean of 5 points"


@pytest.mark.parametrize(
    "chosen",
    ["#metric=nothing&smooth=4&x=time&from=a&to=-3&hide=x&log=", "#=&&==", "#%&metric=%E0%A4%A"],
)
def test_an_address_that_does_not_fit_is_no_choice(at, comparison, chosen):
    page = at(comparison, chosen)
    assert table(page)["a"][0] == "1.025"
    assert page.locator(".uplot canvas").count() == 2


def test_content_that_is_replaced_is_mounted_again(at, comparison):
    page = at(comparison, "#smooth=3&hide=b")
    page.evaluate("window.entrostat.mount()")
    page.evaluate(
        """() => {
          const old = document.querySelector("main");
          const html = document.documentElement.outerHTML;
          const read = new DOMParser().parseFromString(html, "text/html");
          const fresh = read.querySelector("main");
          for (const each of fresh.querySelectorAll(".ex-card")) each.remove();
          old.replaceWith(fresh);
          window.entrostat.mount(fresh);
          window.entrostat.mount(fresh);
        }"""
    )
    assert page.locator(".uplot").count() == 2
    assert page.inner_text("#ex-smooth-is") == "mean of 3 points"
    assert not page.is_checked("#ex-table tbody tr:nth-child(2) input")
    plot(page).focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")  # one listener: one step
    assert plot(page).get_attribute("aria-valuenow") == "2"


# --- without a script, in the dark, in a narrow window


def test_without_javascript_the_pictures_are_there(browser, comparison):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(comparison.as_uri())
    assert not page.is_visible("#explore")
    assert page.locator("#pictures img").first.is_visible()
    context.close()


def test_pictures_are_folded_where_the_charts_are_live(at, comparison):
    page = at(comparison)
    assert not page.locator("#pictures img").first.is_visible()
    page.click("#pictures summary")
    assert hash_of(page) == "#pictures=1"


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1400, "light"),
        (420, "dark"),
        pytest.param(1400, "dark", marks=pytest.mark.slow),
        pytest.param(420, "light", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("which", ["comparison", "report"])
def test_roles_names_and_contrast(at, request, which, width, scheme):
    page = at(request.getfixturevalue(which), width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = axe.Axe().run(page).response
    assert len(found["passes"]) > 30  # it has looked
    worst = [(v["id"], v["nodes"][0]["html"]) for v in found["violations"]
             if v["impact"] in ("serious", "critical")]  # fmt: skip
    assert worst == []
    if which == "comparison":
        assert page.get_by_role("slider", name="entropy/exact by iteration").count() == 1
        assert page.get_by_role("region", name="Last values").count() == 1
        assert page.locator(".ex-card").last.bounding_box()["width"] <= width


def test_a_chart_follows_the_width_of_its_box(at, comparison):
    page = at(comparison)
    page.set_viewport_size({"width": 420, "height": 900})
    until(page, "document.querySelector('.uplot').offsetWidth < 420")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(
    ("values", "chosen"),
    [
        ([0.5], ""),
        ([0.5], "#log=entropy/exact&smooth=101"),
        ([0.0, 0.0], "#log=entropy/exact"),
        ([0.0, 1e-9, 3.0, -2.0], "#log=entropy/exact"),
        ([1.0, 2.0, 3.0], "#from=90"),
        ([1.0, 2.0, 3.0], "#from=3&to=2"),
    ],
)
@pytest.mark.usefixtures("unrendered")
def test_few_values_equal_ones_and_odd_ends(at, tmp_path, values, chosen):
    made = [{"iteration": i, "entropy/exact": v} for i, v in enumerate(values, 1)]
    page = at(write_comparison([make_run(tmp_path / "a", lines=made)], tmp_path / "c.html"), chosen)
    assert page.locator(".uplot canvas").count() == 1
    if "smooth" not in chosen:
        assert float(table(page)["grpo"][0]) == pytest.approx(values[-1])
    plot(page).focus()
    for key in ("Home", "ArrowRight", "PageDown", "+", "-", "End", "Escape"):
        page.keyboard.press(key)


# --- rollouts by prompt, and over the iterations


def heads(page):
    found = page.locator("#tv-list > .tv-head").all()
    return [re.sub(r"\s+", " ", head.inner_text().replace("\u2212", "-")) for head in found]


def test_rollouts_stand_under_their_prompt(at, report):
    page = at(report)
    assert page.is_checked("#tv-group")
    assert shown(page) == list(range(20))  # prompts of five, as they are in the batch
    first, second, *rest = heads(page)
    assert len(rest) == 2
    # rewards 1 0 0 1 0; the completions differ in their lengths
    assert first.startswith(
        "Prompt 0 5 rollouts 2 right mean reward 0.4 5 different completions mean entropy 0."
    )
    assert "over" not in second  # this one has another text in each iteration
    assert first.endswith("over 3 iterations")
    # by length: of the prompts that with the longest mean first, and within it the longest first
    page.select_option("#tv-sort", "length")
    order = shown(page)
    lengths = {i: 9 if i == 5 else 3 + i % 7 for i in range(45)}
    means = [sum(lengths[i] for i in range(5 * k, 5 * k + 5)) / 5 for k in range(9)]
    best = max(range(9), key=lambda k: means[k])
    assert {i // 5 for i in order[:5]} == {best}
    assert [lengths[i] for i in order[:5]] == sorted((lengths[i] for i in order[:5]), reverse=True)
    page.click("#tv-next")
    assert page.locator("#tv-list > li").first.get_attribute("class") == "tv-head"


def test_one_prompt_over_the_iterations(at, report):
    page = at(report)
    assert page.locator("#tv-iteration option").all_inner_texts() == ["1", "2", "3 (analysed)"]
    page.get_by_role("button", name="over 3 iterations").first.click()
    assert page.evaluate("document.activeElement.id") == "tv-back"
    assert page.inner_text("#tv-prompt") == "Prompt 0"
    assert [head.partition(" 5 rollouts")[0] for head in heads(page)] == [
        "Iteration 1", "Iteration 2", "Iteration 3 (analysed)",
    ]  # fmt: skip
    assert status(page) == "15 of 15 rollouts"
    assert shown(page) == [0, 1, 2, 3, 4] * 3
    assert page.is_disabled("#tv-iteration")
    # what only one of them has can be shaded: 0 where the others have nothing
    page.check("#tv-shade input[value=influence]")
    page.hover("#tv-list .tok >> nth=0")
    assert "—" in page.inner_text("#tv-tip")  # iteration 1 has none
    page.select_option("#tv-filter", "right")
    assert shown(page) == [0, 3] * 3
    chosen = hash_of(page)
    assert re.fullmatch(r"#prompt=[0-9a-f]+&shade=influence&only=right", chosen)
    page = at(report, chosen)
    assert shown(page) == [0, 3] * 3
    page.click("#tv-back")
    assert page.locator("#tv-list > li[data-number]").count() == 15
    assert hash_of(page) == "#shade=influence&only=right"


def test_the_address_holds_what_is_looked_at(at, report):
    page = at(report)
    page.select_option("#tv-iteration", label="1")
    page.uncheck("#tv-group")
    page.select_option("#tv-sort", "reward")
    page.check("#tv-up")
    page.click("#tv-next")
    chosen = hash_of(page)
    assert chosen == "#iteration=1&groups=0&sort=reward&up=1&page=2"
    there = shown(page)
    page = at(report, chosen)
    assert shown(page) == there
    assert status(page) == "45 of 45 rollouts; shown: 21 to 40"
    page.fill("#tv-search", "uno dos & # %")
    assert "search=uno+dos+%26+%23+%25" in hash_of(page)
    page = at(report, "#iteration=9&sort=x&page=-4&search=&shade=y&prompt=z&only=q")
    assert page.input_value("#tv-iteration") == "2"
    assert status(page) == "45 of 45 rollouts; shown: 1 to 20"


def test_analysed_iterations_are_marked_on_the_axis(at, report):
    page = at(report)
    assert "A mark on the axis: an analysed iteration." in page.inner_text("#ex-help")
    # in its colour at the end of the axis, and nowhere else
    found = page.evaluate(
        """() => {
          const canvas = document.querySelector(".uplot canvas");
          const { width, height } = canvas;
          const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
          const columns = new Set();
          for (let i = 0; i < data.length; i += 4) {
            const rgba = data.slice(i, i + 4).join();
            if (rgba === "168,67,0,255") columns.add((i / 4) % width);
          }
          return [Math.min(...columns) / width, columns.size];
        }"""
    )
    assert found[0] > 0.9
    assert 2 <= found[1] <= 8
