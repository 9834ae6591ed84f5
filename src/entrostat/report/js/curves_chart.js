// One chart: uPlot, fed with the shapes of the entries that are shown.
const curvesChart = (() => {
  const HEIGHT = 270;
  const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
  const UNITS = { s: 1, min: 60, h: 3600 };
  const STEPS = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));

  // Of a time in seconds the unit that suits its largest value.
  function unitOf(most) {
    return most > 3 * 3600 ? "h" : most > 300 ? "min" : "s";
  }

  // What one step of an axis' labels is in the places of its data.
  function unit(axis, most) {
    return axis === "time" ? UNITS[unitOf(most)] : 1;
  }

  function axisWords(axis, most) {
    const words = { updates: "updates", tokens: "completion tokens", iteration: "iteration" };
    return axis === "time" ? "training time, " + unitOf(most) : words[axis];
  }

  // A place along an axis in words, "iteration 12".
  function place(axis, at, most) {
    if (axis !== "time") return { iteration: "iteration ", updates: "update ", tokens: "token " }[axis] + text.round(at, 6);
    return text.round(at / unit(axis, most), 4) + " " + unitOf(most);
  }

  // What uPlot draws: x and the columns of all series, with the look of each.
  function columns(shapes, target) {
    const tables = [];
    const series = [{}];
    const bands = [];
    const add = (look) => series.push({ spanGaps: true, pxAlign: 0, ...look }) - 1;
    const hidden = { points: { show: false } };
    for (const { entry, shape } of shapes) {
      const main = { stroke: entry.color, width: shape.lines.length > 1 ? 1.1 : 2, dash: entry.dash, points: { size: 5, fill: entry.color } };
      if (shape.band) {
        const { x, y, low, high } = shape.band;
        tables.push([x, high, low, y]);
        const edge = { stroke: "transparent", width: 0, ...hidden };
        bands.push({ series: [add(edge), add(edge)], fill: entry.color + "33" });
        add(main);
      }
      for (const { x, y, raw } of shape.lines) {
        tables.push(raw === null ? [x, y] : [x, raw, y]);
        if (raw !== null) add({ stroke: entry.color + "55", width: 1, ...hidden });
        add(main);
      }
    }
    for (const { entry, shape } of target) {
      for (const { x, y } of shape.band ? [shape.band] : shape.lines.slice(0, 1)) {
        tables.push([x, y]);
        add({ stroke: entry.color, width: 1.2, dash: [7, 4], ...hidden });
      }
    }
    return { data: tables.length > 0 ? uPlot.join(tables) : [[]], series, bands };
  }

  // The vertical scale: logarithmic on both sides of 0 where a value is not above it.
  function scaleOf(data, log) {
    if (!log) return { distr: 1 };
    const known = data.slice(1).flatMap((column) => column.filter((v) => v !== null && v !== undefined));
    const sizes = known.map(Math.abs).filter((v) => v > 0);
    if (sizes.length === 0) return { distr: 1 };
    if (known.every((v) => v > 0)) return { distr: 3 };
    const [least, most] = [sizes.reduce((a, b) => Math.min(a, b)), sizes.reduce((a, b) => Math.max(a, b))];
    return { distr: 4, asinh: 10 ** Math.floor(Math.log10(Math.max(least, most * 1e-5))) };
  }

  function short(v) {
    if (v === null) return "";
    return (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5) ? v.toExponential().replace("e+", "e")
      : String(Number(v.toPrecision(6)))).replaceAll("-", "−");
  }

  // box: where it goes; on: what to tell of the pointer; marks: places under which a mark is drawn.
  function make(box, { shapes, target, log, axis, most, marks, from, to }, on) {
    const { data, series, bands } = columns(shapes, target);
    if (data[0].length === 0) return null;
    const scale = scaleOf(data, log);
    const step = unit(axis, most);
    const grid = { stroke: "#DCDCDC", width: 1 };
    const tone = { stroke: "#444444", font: FONT, labelFont: FONT, grid, ticks: { show: false } };
    // a place of its own at both ends, for a single point has no width
    const [first, last] = [data[0][0], data[0][data[0].length - 1]];
    const whole = first === last ? [first - 1, last + 1] : [first, last];
    const shown = [from ?? whole[0], to ?? whole[1]];
    const chart = new uPlot({
      width: Math.max(120, box.clientWidth), height: HEIGHT, series, bands, padding: [12, 14, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        points: { size: 7 },
        hover: { prox: 12, skip: [null, undefined] },
        drag: { x: true, y: false, setScale: false },
        bind: {
          dblclick: () => () => { on.zoom(null, null); return null; },
          mouseleave: (u, box, handler) => (event) => { handler(event); on.point(null); return null; },
          // what the reader's pointer does; what the keys do is told by whoever they were pressed at
          mousemove: (u, box, handler) => (event) => {
            handler(event);
            on.point(u.posToVal(event.clientX - u.over.getBoundingClientRect().left, "x"));
            return null;
          },
        },
      },
      scales: {
        x: { time: false, range: () => shown[0] < shown[1] ? shown : whole },
        y: scale,
      },
      axes: [
        { ...tone, label: axisWords(axis, most), labelSize: 20, size: 28, space: 60,
          values: (u, splits) => splits.map((v) => short(v === null ? null : v / step)),
          incrs: STEPS.map((v) => axis === "time" ? v * step / 10 : v) },
        { ...tone, size: (u, words) => 16 + 7 * Math.max(2, ...(words ?? []).map((w) => String(w ?? "").length)),
          values: (u, splits) => splits.map(short) },
      ],
      hooks: {
        setSelect: [(u) => {
          const { left, width } = u.select;
          if (width < 4) return;
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          on.zoom(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
        }],
        draw: [(u) => draw(u, marks)],
      },
    }, data, box);
    return {
      resize: () => chart.setSize({ width: Math.max(120, box.clientWidth), height: HEIGHT }),
      destroy: () => chart.destroy(),
      // the line of the cursor at a place, or none
      point: (at) => chart.setCursor(at === null ? { left: -10, top: -10 }
        : { left: chart.valToPos(at, "x"), top: -10 }, false),
      over: chart.over,
      left: (at) => chart.valToPos(at, "x"),
      log: scale.distr,
    };
  }

  // A small mark on the axis under every analysed iteration.
  function draw(u, marks) {
    const { ctx, bbox } = u;
    const size = 5 * devicePixelRatio;
    ctx.save();
    ctx.fillStyle = "#A84300";
    for (const at of marks) {
      const x = u.valToPos(at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top + bbox.height - size);
      ctx.lineTo(x - size * 0.7, bbox.top + bbox.height + size * 0.3);
      ctx.lineTo(x + size * 0.7, bbox.top + bbox.height + size * 0.3);
      ctx.fill();
    }
    ctx.restore();
  }

  return { make, place, unit };
})();
