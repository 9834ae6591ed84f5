// The values of the curves in words: the table that is the legend as well, and the box at the pointer.
const curvesReadout = (() => {
  const { element } = text;
  const MOST = 12;  // entries in the box at the pointer

  // The line that an entry is drawn with.
  function swatch(entry) {
    const made = (tag, attributes) => {
      const part = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, value);
      return part;
    };
    const svg = made("svg", { class: "ex-swatch", viewBox: "0 0 28 10", "aria-hidden": "true" });
    svg.append(made("line", {
      x1: 1, x2: 27, y1: 5, y2: 5, stroke: entry.color, "stroke-width": 3, "stroke-dasharray": entry.dash.join(" "),
    }));
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
    const runs = element("th", "left", "run ", { scope: "col" });
    if (entries.length > 1) {
      for (const [word, show] of [["all", true], ["none", false]]) {
        const label = (show ? "show" : "hide") + " all runs";
        const button = element("button", "ex-small", word, { type: "button", "aria-label": label });
        button.addEventListener("click", () => on.all(show));
        runs.append(button);
      }
    }
    head.append(runs, ...charts.map(({ metric }) => element("th", "", text.visible(metric.key), { scope: "col" })));
    const rows = entries.map((entry, place) => {
      const row = element("tr");
      const cell = element("th", "", "", { scope: "row" });
      const label = element("label", "ex-run");
      const box = element("input", "", "", { type: "checkbox" });
      box.checked = !hidden.has(entry.label);
      box.addEventListener("change", () => on.show(place, box.checked));
      label.append(box, swatch(entry), element("span", "", name(entry)));
      cell.append(label);
      row.append(cell, ...charts.map(() => element("td")));
      return row;
    });
    table.tHead.replaceChildren(head);
    table.tBodies[0].replaceChildren(...rows);
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
