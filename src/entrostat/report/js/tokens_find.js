// Which rollouts are shown, in which order, under which headings, on which page of the list.
const tokensFind = (() => {
  const ROWS = 20;      // rollouts of one page of the list ...
  const TOKENS = 6000;  // ... or fewer where they hold more tokens than this

  function figure(rollout, key) {
    if (key === "length") return rollout.length || rollout.text.length;
    return { order: rollout.place, reward: rollout.reward, entropy: rollout.meanEntropy,
      influence: rollout.influence }[key];
  }

  function isOf(kind, { reward }) {
    return kind === "all" || (kind === "right" ? reward >= 1 : reward < 1);
  }

  function mean(values) {
    const known = values.filter((value) => !Number.isNaN(value));
    return known.length === 0 ? NaN : known.reduce((sum, value) => sum + value, 0) / known.length;
  }

  // Unknown ones last, whatever the direction.
  function compare(x, y, direction) {
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
    return direction * (x - y);
  }

  // The rollouts that match, group after group. `by` gives a rollout's group, or is null for none.
  function find(rollouts, { words, kind, sort, up, by }) {
    const found = rollouts.filter((each) => isOf(kind, each) && each.key.includes(words.toLowerCase()));
    // the batch's own order begins at its beginning, all else with the largest
    const direction = sort === "order" || up ? 1 : -1;
    const sorted = (some) => some.sort((a, b) => compare(figure(a, sort), figure(b, sort), direction) || a.place - b.place);
    if (by === null) return sorted(found);
    const groups = new Map();
    for (const rollout of found) {
      if (!groups.has(by(rollout))) groups.set(by(rollout), []);
      groups.get(by(rollout)).push(rollout);
    }
    const ranked = [...groups.values()].map((some) => ({
      some: sorted(some), of: sort === "order" ? NaN : mean(some.map((each) => figure(each, sort))),
    }));
    // a stable sort: in the batch's own order groups stay as they came
    return ranked.sort((a, b) => compare(a.of, b.of, direction)).flatMap(({ some }) => some);
  }

  // Where in `found` each page begins.
  function pages(found) {
    const starts = [0];
    let tokens = 0;
    found.forEach((rollout, i) => {
      const first = starts[starts.length - 1];
      if (i > first && (i - first >= ROWS || tokens + rollout.shown > TOKENS)) {
        starts.push(i);
        tokens = 0;
      }
      tokens += rollout.shown;
    });
    return starts;
  }

  // What some rollouts of one prompt came to, in words.
  function summary(rollouts) {
    const known = rollouts.filter(({ reward }) => !Number.isNaN(reward));
    const right = known.filter(({ reward }) => reward >= 1).length;
    const different = new Set(rollouts.map((rollout) => rollout.text)).size;
    const entropy = mean(rollouts.map(({ meanEntropy }) => meanEntropy));
    return [
      text.count(rollouts.length, "rollout"),
      known.length === 0 ? "" : right + " right",
      known.length === 0 ? "" : "mean reward " + text.round(mean(known.map(({ reward }) => reward))),
      different + (different === 1 ? " completion" : " different completions"),
      Number.isNaN(entropy) ? "" : "mean entropy " + text.plain(entropy),
    ].filter((part) => part !== "");
  }

  return { find, pages, summary };
})();
