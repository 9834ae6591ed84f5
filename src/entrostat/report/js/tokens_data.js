// The rollouts of a page: its JSON decoded, iteration by iteration as they are asked for
// (report/tokens writes it).
const tokensData = (() => {
  // A short name of a prompt, for the address: FNV-1a.
  function nameOf(prompt) {
    let hash = 0x811c9dc5;
    for (let i = 0; i < prompt.length; i++) hash = Math.imul(hash ^ prompt.charCodeAt(i), 0x01000193);
    return (hash >>> 0).toString(16);
  }

  function open(data) {
    const decoded = new Map();
    const where = new Map();  // prompt -> the iterations that have it, by their place on the page
    data.iterations.forEach(({ prompts }, index) => {
      for (const prompt of prompts) where.set(prompt, [...(where.get(prompt) ?? []), index]);
    });

    function iteration(index) {
      if (decoded.has(index)) return decoded.get(index);
      const source = data.iterations[index];
      const tokens = numbers.whole(source.tokens);
      const values = {};
      for (const [name, packed] of Object.entries(source.values)) values[name] = numbers.floats(packed);
      const sampled = source.sampled ? numbers.whole(source.sampled) : null;
      const result = { ...source, index, ids: numbers.whole(source.ids), tokens, sampled, values };
      let start = 0;
      result.rollouts = source.length.map((length, k) => {
        const shown = Math.min(length, data.longest);
        const rollout = {
          of: result,
          place: source.place[k],
          prompt: source.prompts[source.prompt[k]],
          reward: source.reward[k] ?? NaN,
          finished: Boolean(source.finished[k]),
          trained: Boolean(source.trained[k]),
          group: source.group[k],
          advantage: source.advantage[k] ?? NaN,
          meanEntropy: source.entropy[k] ?? NaN,
          influence: source.influence[k] ?? NaN,
          observed: source.observed[k],
          length, start, shown,
        };
        start += shown;
        // without its end token, where that is there
        const body = shown - (rollout.finished && shown === length && shown > 0 ? 1 : 0);
        rollout.plain = source.completion[k];
        rollout.text = rollout.plain ?? Array.from(
          tokens.subarray(rollout.start, rollout.start + body), (t) => source.pieces[t]).join("");
        rollout.key = (rollout.prompt + "\n" + rollout.text).toLowerCase();
        return rollout;
      });
      decoded.set(index, result);
      return result;
    }

    const analysed = data.iterations.map(({ values }) => "change" in values || "influence" in values);
    const names = new Map([...where.keys()].map((prompt) => [nameOf(prompt), prompt]));

    return {
      ...data, iteration, analysed, nameOf,
      // the prompt of a name, and the iterations that have a prompt
      named: (name) => names.get(name),
      having: (prompt) => where.get(prompt) ?? [],
    };
  }

  return { open };
})();
