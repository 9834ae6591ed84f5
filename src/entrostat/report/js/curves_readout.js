// The values of the curves in words: the table that is the legend as well, and the box at the pointer.
const curvesReadout = (() => {
  const { element } = text;
  const MOST = 12;  // entries in the box at the pointer

  // The line that an entry is drawn with.
  function swatch(entry) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [name, value] of Object.entries({ class: "ex-swatch", viewBox: "0 0 28 10", "aria-hidden": "true" })) {
      svg.setAttribute(name, value);
    }
    const looks = { x1: 1, x2: 27, y1: 5, y2: 5, stroke: entry.color, "stroke-width": 3, "stroke-dasharray": entry.dash.join(" ") };
    for (const [name, value] of Object.entries(looks)) line.setAttribute(name, String(value));
    svg.append(line);
    return svg;
  }

  function name(entry) {
    const seeds = entry.members.length > 1 ? " (" + entry.members.length + " seeds)" : "";
    return text.visible(entry.label) + seeds;
  }

  // An entry's value at a place, or its last one: a number, and its words; of several seeds the mean,
  // the lowest and the highest.
  function value(shape, at) {
    const of = (x, y) => at === null ? y[y.length - 1] : curvesData.valueAt({ x, y }, at);
    const known = (shape?.lines ?? []).map(({ x, y }) => of(x, y)).filter((each) => !Number.isNaN(each));
    const range = shape?.band ? [shape.band.y, shape.band.low, shape.band.high].map((y) => of(shape.band.x, y))
      : [known.reduce((sum, each) => sum + each, 0) / known.length, Math.min(...known), Math.max(...known)];
    const [middle, low, high] = range.map(text.plain);
    const single = Number.isNaN(range[0]) || (!shape.band && known.length === 1);
    return { number: range[0], words: single ? middle : middle + " [" + low + ", " + high + "]" };
  }

  // The table's rows; its cells are filled by `fill`.
  function build(table, entries, charts, hidden, on) {
    const head = element("tr");
    const runs = element("th", "left", "run ");
    runs.scope = "col";
    if (entries.length > 1) {
      for (const [word, show] of [["all", true], ["none", false]]) {
        const button = element("button", "ex-small", word);
        button.type = "button";
        button.setAttribute("aria-label", show ? "show all runs" : "hide all runs");
        button.addEventListener("click", () => on.all(show));
        runs.append(button);
      }
    }
    head.append(runs);
    for (const { metric } of charts) {
      const cell = element("th", "", text.visible(metric.key));
      cell.scope = "col";
      head.append(cell);
    }
    const rows = entries.map((entry, place) => {
      const row = element("tr");
      const cell = element("th");
      cell.scope = "row";
      const label = element("label", "ex-run");
      const box = element("input");
      box.type = "checkbox";
      box.checked = !hidden.has(entry.label);
      box.addEventListener("change", () => on.show(place, box.checked));
      label.append(box, swatch(entry), element("span", "", name(entry)));
      cell.append(label);
      row.append(cell, ...charts.map(() => element("td")));
      return row;
    });
    const body = element("tbody");
    body.append(...rows);
    const top = element("thead");
    top.append(head);
    table.replaceChildren(top, body);
  }

  function fill(table, entries, charts, at) {
    entries.forEach((_, place) => {
      charts.forEach(({ shapes }, k) => {
        table.tBodies[0].rows[place].cells[k + 1].textContent = value(shapes.get(place), at).words;
      });
    });
    [...table.tBodies[0].rows].forEach((row, place) => {
      row.classList.toggle("ex-off", !charts.some(({ shown }) => shown.has(place)));
    });
  }

  // The shown entries at a place, the largest value first.
  function ranked(entries, { shapes, shown }, at) {
    return entries.map((entry, place) => ({ entry, place, ...value(shapes.get(place), at) }))
      .filter(({ number, place }) => shown.has(place) && !Number.isNaN(number))
      .sort((a, b) => b.number - a.number);
  }

  function sentence(where, rows) {
    if (rows.length === 0) return where + ": no values";
    return where + ": " + rows.map(({ entry, words }) => name(entry) + " " + words).join(", ");
  }

  function tip(box, where, rows) {
    const list = element("ul");
    for (const { entry, words } of rows.slice(0, MOST)) {
      const item = element("li");
      item.append(swatch(entry), element("span", "ex-name", name(entry)), element("b", "", words));
      list.append(item);
    }
    if (rows.length > MOST) list.append(element("li", "soft", "and " + (rows.length - MOST) + " more"));
    box.replaceChildren(element("p", "soft", where), list);
  }

  return { build, fill, ranked, sentence, tip };
})();
