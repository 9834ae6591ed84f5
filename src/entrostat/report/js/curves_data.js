// The curves of a page: its JSON decoded, averaged, seeds brought together (report/explore writes it).
const curvesData = (() => {
  // A centred moving average over `width` points, shorter at both ends.
  function average(y, width) {
    if (width === 1) return y;
    const half = (width - 1) / 2;
    const sums = [0];
    for (const value of y) sums.push(sums[sums.length - 1] + value);
    return Array.from(y, (_, i) => {
      const [from, to] = [Math.max(0, i - half), Math.min(y.length, i + half + 1)];
      return (sums[to] - sums[from]) / (to - from);
    });
  }

  // Mean, lowest and highest at the places that all curves have; null where there are too few.
  function band(curves) {
    const columns = curves.map(({ x, y }) => new Map(x.map((at, i) => [at, y[i]])));
    const x = curves[0].x.filter((at) => columns.every((column) => column.has(at)));
    if (x.length < 2 && curves.some((curve) => curve.x.length > 1)) return null;
    if (x.length === 0) return null;
    const rows = x.map((at) => columns.map((column) => column.get(at)));
    return {
      x,
      y: rows.map((row) => row.reduce((sum, value) => sum + value, 0) / row.length),
      low: rows.map((row) => Math.min(...row)),
      high: rows.map((row) => Math.max(...row)),
    };
  }

  // The value at the last place at or before `at`; NaN before the first and beyond the last.
  function valueAt({ x, y }, at) {
    if (x.length === 0 || at < x[0] || at > x[x.length - 1]) return NaN;
    let [low, high] = [0, x.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (x[middle] <= at) low = middle;
      else high = middle - 1;
    }
    return y[low];
  }

  function open(data) {
    const decoded = new Map();

    // A metric's values over a run's places, NaN where there is none; null where it has none at all.
    function values(metric, run) {
      const name = metric + " " + run;
      if (!decoded.has(name)) {
        const packed = data.runs[run].values[metric];
        if (packed === null || typeof packed === "string") {
          decoded.set(name, packed === null ? null : numbers.floats(packed));
        } else {
          const spread = new Float32Array(data.runs[run].x.length).fill(NaN);
          numbers.floats(packed.values).forEach((value, i) => { spread[packed.at[i]] = value; });
          decoded.set(name, spread);
        }
      }
      return decoded.get(name);
    }

    // A run's places along an axis; null where it does not say them.
    function places(run, axis) {
      return (axis === "iteration" ? data.runs[run].x : data.runs[run].axes[axis]) ?? null;
    }

    function curve(metric, run, axis) {
      const [found, along] = [values(metric, run), places(run, axis)];
      const [x, y] = [[], []];
      if (found === null || along === null) return { x, y };
      for (let i = 0; i < found.length; i++) {
        // of two values at one place (an evaluation that costs no update) the later
        if (Number.isNaN(found[i])) continue;
        if (x.length > 0 && x[x.length - 1] === along[i]) y[y.length - 1] = found[i];
        else {
          x.push(along[i]);
          y.push(found[i]);
        }
      }
      return { x, y };
    }

    // What an entry looks like: a band of its seeds where they can be brought together, else lines.
    function drawn(entry, metric, { axis, width, bands }) {
      const curves = entry.members.map((run) => curve(metric, run, axis));
      const smooth = curves.map(({ x, y }) => ({ x, y: average(y, width) }));
      if (bands && curves.length > 1 && curves.every(({ x }) => x.length > 0)) {
        const found = band(smooth);
        if (found !== null) return { band: found, lines: [] };
      }
      const lines = smooth.map(({ x, y }, i) => ({ x, y, raw: width > 1 ? curves[i].y : null }));
      return { band: null, lines: lines.filter(({ x }) => x.length > 0) };
    }

    // Places of the analysed iterations of some runs.
    function marks(runs, axis) {
      return runs.flatMap((run) => {
        const { x, analysed } = data.runs[run];
        const along = places(run, axis);
        const on = (i) => Math.min(Math.max(i, x[0]), x[x.length - 1]);
        return along === null ? [] : analysed.map((i) => valueAt({ x, y: along }, on(i)));
      });
    }

    // The other names under which a metric was logged, with the runs that did.
    function loggedAs(metric) {
      const found = new Map();
      for (const [run, name] of Object.entries(metric.names)) {
        if (data.runs[run].values[index.get(metric.key)] === null) continue;
        found.set(name, [...(found.get(name) ?? []), data.runs[run].label]);
      }
      return [...found].map(([name, runs]) => ({ name, runs }));
    }

    const axes = ["iteration", "updates", "tokens", "time"].filter(
      (axis) => data.runs.some((_, run) => places(run, axis) !== null));
    const index = new Map(data.metrics.map(({ key }, i) => [key, i]));

    return { ...data, axes, index, places, drawn, marks, loggedAs };
  }

  return { open, valueAt };
})();
