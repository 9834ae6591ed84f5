// The curves of a page: its controls, its charts, and what the reader's pointer and keys do there.
const curves = (() => {
  const { element } = text;
  const WIDTHS = [1, 3, 5, 7, 11, 15, 21, 31, 51, 75, 101];  // points of the moving average
  const MOST = 8;  // charts
  const TARGET = "control/target";

  function plainNumber(x) {
    return String(Number(x.toPrecision(6)));
  }

  function mount(root, signal) {
    const home = root.querySelector("#explore");
    const source = root.querySelector("#explore-data");
    if (home === null || source === null) return;
    const data = curvesData.open(JSON.parse(source.textContent));
    const { entries } = data;
    const $ = (name) => home.querySelector("#ex-" + name);
    const listen = (target, event, does) => target.addEventListener(event, does, { signal });

    // What the address says, where it fits this page.
    function told() {
      const keys = state.all("metric").filter((key) => data.index.has(key)).slice(0, MOST);
      const [from, to] = ["from", "to"].map((name) => state.one(name) === null ? NaN : Number(state.one(name)));
      const width = Number(state.one("smooth") ?? 1);
      return {
        keys: keys.length > 0 ? keys : data.shown,
        log: new Set(state.all("log")),
        hidden: new Set(state.all("hide")),
        axis: data.axes.includes(state.one("x")) ? state.one("x") : "iteration",
        width: WIDTHS.includes(width) ? width : 1,
        bands: state.one("seeds") !== "lines",
        from: Number.isFinite(from) ? from : null,
        to: Number.isFinite(to) && !(to <= from) ? to : null,
      };
    }

    let now = told();
    let charts = [];   // of each: metric, shapes by entry, the places of the shown ones, its elements, its chart
    let places = [];   // where the shown curves have a value, rising
    let most = 0;      // the last place of any run
    let at = null;     // the place that is looked at
    let under = null;  // the chart where that is

    function change(choices) {
      state.set(choices);
      now = told();
      draw();
    }

    const zoom = (from, to) => change({
      from: from === null ? null : plainNumber(from),
      to: to === null ? null : plainNumber(to),
    });

    // The charts' frames: a metric, an axis, the plot.

    function choice(place) {
      const select = element("select", "", "", { "aria-label": "Metric of chart " + (place + 1) });
      const groups = new Map();
      for (const { key, group } of data.metrics) {
        if (!groups.has(group)) {
          groups.set(group, element("optgroup", "", "", { label: text.visible(group) }));
          select.append(groups.get(group));
        }
        groups.get(group).append(new Option(text.visible(key), key));
      }
      listen(select, "change", () => change({ metric: now.keys.map((key, i) => i === place ? select.value : key) }));
      return select;
    }

    function frame(place) {
      const card = element("div", "ex-card", "", { role: "group", "aria-label": "Chart " + (place + 1) });
      const head = element("div", "ex-head");
      const select = choice(place);
      const unit = element("span", "soft");
      const log = element("input", "", "", { type: "checkbox" });
      listen(log, "change", () => {
        const others = [...now.log].filter((key) => key !== now.keys[place]);
        change({ log: log.checked ? [...others, now.keys[place]] : others });
      });
      const label = element("label", "tv-check");
      label.append(log, "log axis");
      const remove = element("button", "ex-small", "remove", { type: "button", "aria-label": "remove chart " + (place + 1) });
      listen(remove, "click", () => {
        change({ metric: now.keys.filter((_, i) => i !== place) });
        $("add").focus();
      });
      head.append(select, unit, label, remove);
      const plot = element("div", "ex-plot", "", { tabindex: 0, role: "slider", "aria-describedby": "ex-help" });
      const tip = element("div", "ex-tip", "", { hidden: "", "aria-hidden": "true" });
      const words = element("p", "soft ex-note");
      card.append(head, plot, tip, words);
      listen(plot, "keydown", (event) => press(event, place));
      listen(plot, "focus", () => { under = place; point(at ?? places[places.length - 1] ?? null); });
      listen(plot, "blur", () => { if (under === place) point(null); });
      return { card, select, unit, log, remove, plot, tip, words, chart: null };
    }

    // Drawing

    function draw() {
      if (charts.length !== now.keys.length) {
        for (const each of charts) each.chart?.destroy();
        charts = now.keys.map((_, place) => frame(place));
        $("charts").replaceChildren(...charts.map(({ card }) => card));
      }
      const settings = { axis: now.axis, width: now.width, bands: now.bands };
      most = Math.max(0, ...data.runs.flatMap((_, run) => (data.places(run, now.axis) ?? []).slice(-1)));
      const found = new Set();
      charts.forEach((each, place) => {
        const index = data.index.get(now.keys[place]);
        each.metric = data.metrics[index];
        each.shapes = new Map(entries.map((entry, i) => [i, data.drawn(entry, index, settings)]));
        each.shown = new Set([...entries.keys()].filter((i) => !now.hidden.has(entries[i].label)));
        for (const i of each.shown) {
          const shape = each.shapes.get(i);
          for (const { x } of shape.band ? [shape.band] : shape.lines) x.forEach((value) => found.add(value));
        }
      });
      places = [...found].filter((x) => x >= (now.from ?? -Infinity) && x <= (now.to ?? Infinity)).sort((a, b) => a - b);
      controls();
      charts.forEach(plot);
      curvesReadout.build($("table"), entries, charts, now.hidden, { show, all });
      point(at !== null && at >= places[0] && at <= places[places.length - 1] ? at : null);
    }

    function plot(each, place) {
      const { metric, shapes, shown } = each;
      const pick = (of) => [...shown].map((i) => ({ entry: entries[i], shape: of(i) }));
      const targets = metric.unit === "nats per token" && metric.group === "entropy" ? data.index.get(TARGET) : undefined;
      const plain = { axis: now.axis, width: 1, bands: true };
      each.chart?.destroy();
      each.chart = curvesChart.make(each.plot, {
        shapes: pick((i) => shapes.get(i)),
        target: targets === undefined ? [] : pick((i) => data.drawn(entries[i], targets, plain)),
        log: now.log.has(metric.key), axis: now.axis, most, from: now.from, to: now.to,
        marks: data.marks([...shown].flatMap((i) => entries[i].members), now.axis),
      }, { zoom, point: (x) => { under = place; point(x, place); } });
      each.select.value = metric.key;
      each.unit.textContent = metric.unit;
      each.log.checked = now.log.has(metric.key);
      each.remove.hidden = charts.length === 1;
      each.plot.setAttribute("aria-label", text.visible(metric.key) + " by " + now.axis);
      each.words.textContent = each.chart === null ? "Nothing to draw: no run that is shown has it along this axis."
        : notes(each, targets !== undefined, each.chart.log);
    }

    function notes({ metric, shapes, shown }, target, scale) {
      const said = data.loggedAs(metric).map(({ name, runs }) => text.visible(name)
        + (runs.length < data.runs.length ? " in " + runs.map(text.visible).join(", ") : ""));
      return [
        said.length > 0 ? "Logged as " + said.join("; ") + "." : "",
        [...shown].some((i) => shapes.get(i).band) ? "Bands: lowest to highest of the seeds, where all of them have a value; line: their mean." : "",
        target ? "Dashed: the controller’s target." : "",
        scale === 4 ? "Logarithmic on both sides of 0." : "",
      ].filter((part) => part !== "").join(" ");
    }

    // What is looked at

    function nearest(x) {
      return places.reduce((best, each) => Math.abs(each - x) < Math.abs(best - x) ? each : best, places[0] ?? null);
    }

    // A place that is looked at, or none; a chart that the pointer is over draws its own cursor.
    function point(x, pointed = null) {
      at = x === null ? null : nearest(x);
      if (at === null) under = null;
      const where = at === null ? "Last values" : "At " + curvesChart.place(now.axis, at, most);
      $("where").textContent = where;
      curvesReadout.fill($("table"), entries, charts, at);
      charts.forEach((each, place) => {
        const rows = curvesReadout.ranked(entries, each, at);
        if (place !== pointed) each.chart?.point(at);
        const last = places[places.length - 1] ?? 0;
        each.plot.setAttribute("aria-valuemin", String(places[0] ?? 0));
        each.plot.setAttribute("aria-valuemax", String(last));
        each.plot.setAttribute("aria-valuenow", String(at ?? last));
        each.plot.setAttribute("aria-valuetext", curvesReadout.sentence(where, rows));
        each.tip.hidden = place !== under || at === null || rows.length === 0;
        if (each.tip.hidden) return;
        curvesReadout.tip(each.tip, where, rows);
        const plotted = each.plot.getBoundingClientRect();
        const over = each.chart.over.getBoundingClientRect();
        const x = over.left - plotted.left + each.chart.left(at);
        const right = x < plotted.width / 2;
        each.tip.style.left = right ? x + 14 + "px" : "auto";
        each.tip.style.right = right ? "auto" : plotted.width - x + 14 + "px";
        each.tip.style.top = each.plot.offsetTop + 14 + "px";
      });
    }

    function press(event, place) {
      if (event.ctrlKey || event.altKey || event.metaKey || places.length === 0) return;
      const i = places.indexOf(at);
      const go = { ArrowRight: i + 1, ArrowUp: i + 1, ArrowLeft: i - 1, ArrowDown: i - 1, PageUp: i + 10, PageDown: i - 10,
        Home: 0, End: places.length - 1 }[event.key];
      const span = (now.to ?? most) - (now.from ?? Math.min(places[0], 0));
      const scale = { "+": 0.25, "=": 0.25, "-": 1 }[event.key];
      if (go !== undefined) {
        under = place;
        point(places[Math.max(0, Math.min(places.length - 1, go))]);
      } else if (scale !== undefined) {
        const middle = at ?? (now.from ?? 0) + span / 2;
        const [from, to] = [middle - span * scale, middle + span * scale];
        if (scale < 1 || (now.from ?? now.to) !== null) zoom(from <= 0 ? null : from, to >= most ? null : to);
      } else if (event.key === "0") {
        zoom(null, null);
      } else if (event.key === "Escape") {
        point(null);
      } else {
        return;
      }
      event.preventDefault();
    }

    // The controls

    function show(place, yes) {
      const label = entries[place].label;
      const others = [...now.hidden].filter((each) => each !== label);
      change({ hide: yes ? others : [...others, label] });
      $("table").tBodies[0].rows[place].querySelector("input").focus();
    }

    function all(yes) {
      change({ hide: yes ? [] : entries.map(({ label }) => label) });
      $("table").querySelectorAll("thead button")[yes ? 0 : 1].focus();
    }

    function controls() {
      const unit = curvesChart.unit(now.axis, most);
      $("x").value = now.axis;
      $("smooth").value = String(WIDTHS.indexOf(now.width));
      const words = now.width === 1 ? "none" : "mean of " + now.width + " points";
      $("smooth-is").textContent = words;
      $("smooth").setAttribute("aria-valuetext", words);
      $("seeds").checked = now.bands;
      for (const name of ["from", "to"]) $(name).value = now[name] === null ? "" : plainNumber(now[name] / unit);
      $("whole").disabled = now.from === null && now.to === null;
      $("add").disabled = now.keys.length >= MOST;
      const without = data.runs.filter((_, run) => data.places(run, now.axis) === null).map(({ label }) => text.visible(label));
      $("without").textContent = without.length === 0 ? "" : "Not drawn along " + now.axis + ", which they do not log: " + without.join(", ") + ".";
    }

    $("x").replaceChildren(...data.axes.map((axis) => new Option(axis, axis)));
    $("smooth").max = String(WIDTHS.length - 1);
    $("seeds").parentElement.hidden = !entries.some(({ members }) => members.length > 1);
    listen($("x"), "change", () => change({ x: $("x").value === "iteration" ? null : $("x").value, from: null, to: null }));
    listen($("smooth"), "input", () => {
      const width = WIDTHS[Number($("smooth").value)];
      change({ smooth: width === 1 ? null : String(width) });
    });
    listen($("seeds"), "change", () => change({ seeds: $("seeds").checked ? null : "lines" }));
    for (const name of ["from", "to"]) {
      listen($(name), "change", () => {
        const unit = curvesChart.unit(now.axis, most);
        change({ [name]: $(name).value === "" ? null : plainNumber($(name).value * unit) });
      });
    }
    listen($("whole"), "click", () => zoom(null, null));
    listen($("add"), "click", () => {
      const next = data.metrics.find(({ key }) => !now.keys.includes(key)) ?? data.metrics[0];
      change({ metric: [...now.keys, next.key] });
      charts[charts.length - 1].select.focus();
    });
    home.hidden = false;
    draw();
    const watcher = new ResizeObserver(() => {
      for (const each of charts) each.chart?.resize();
    });
    watcher.observe($("charts"));
    signal.addEventListener("abort", () => {
      watcher.disconnect();
      for (const each of charts) each.chart?.destroy();
    });
  }

  return { mount };
})();
