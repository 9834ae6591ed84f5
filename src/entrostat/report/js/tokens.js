// The token view of a run's page: rollouts as text, each token shaded by one of its figures; of one
// iteration, by prompt, or of one prompt over the iterations.
const tokens = (() => {
  const { element, plain, signed, visible } = text;
  const MEANINGS = {
    entropy: "Entropy of the distribution that the token was drawn from.",
    change: "Entropy at the token’s place after the iteration’s updates, minus before.",
    influence: "What the token’s gradient does to the mean entropy of the batch, to first order.",
    advantage: "The advantage that the token was trained with, after the methods’ edits.",
  };
  const SIGNED = new Set(["change", "influence", "advantage"]);

  function mount(root, signal) {
    const home = root.querySelector("#token-view");
    const source = root.querySelector("#token-data");
    if (home === null || source === null) return;
    const data = tokensData.open(JSON.parse(source.textContent));
    const $ = (name) => home.querySelector("#tv-" + name);
    const listen = (target, event, does) => target.addEventListener(event, does, { signal });
    const list = $("list");
    const radios = [...$("shade").querySelectorAll("input")];
    const rolloutOfRow = new WeakMap();
    const rolloutOf = (span) => rolloutOfRow.get(span.closest(".tv-row"));
    const tip = tokensTip.mount(list, $("tip"), rolloutOf, signal);
    // the last analysed iteration, which has most to show; without one the last
    const begin = data.analysed.lastIndexOf(true);
    const first = begin < 0 ? data.iterations.length - 1 : begin;
    // by prompt where prompts have several rollouts
    const several = data.iterations.some(({ prompts, prompt }) => prompt.length > prompts.length);

    // What the address says, where it fits this page.
    function told() {
      const index = data.iterations.findIndex(({ iteration }) => String(iteration) === state.one("iteration"));
      const among = (name, select, other) =>
        [...select.options].some(({ value }) => value === state.one(name)) ? state.one(name) : other;
      return {
        index: index < 0 ? first : index,
        prompt: data.named(state.one("prompt") ?? "") ?? null,
        groups: (state.one("groups") ?? (several ? "1" : "0")) === "1",
        shade: radios.some(({ value }) => value === state.one("shade")) ? state.one("shade") : "entropy",
        kind: among("only", $("filter"), "all"),
        sort: among("sort", $("sort"), "order"),
        up: state.one("up") === "1",
        words: state.one("search") ?? "",
        page: Number(state.one("page") ?? 1) - 1,
      };
    }

    let now = told();
    let shown = [];    // the iterations whose rollouts are listed, decoded
    let all = [];      // their rollouts, of one prompt where one is chosen
    let found = [];    // those that match, sorted
    let starts = [0];  // where in `found` each page begins

    // Choices that change which rollouts are listed begin at the first page.
    function change(choices) {
      state.set({ page: null, ...choices });
      now = told();
      open();
    }

    // Shades

    function measure() {
      const there = radios.map((radio) => radio.value).filter((name) => shown.some(({ values }) => name in values));
      return there.includes(now.shade) ? now.shade : there[0];
    }

    function shade(span, name) {
      const value = name === undefined ? NaN : rolloutOf(span).of.values[name]?.[span.dataset.at] ?? NaN;
      const share = value / data.scales[name];
      const strength = Number.isNaN(share) ? 0 : Math.min(1, Math.abs(share));
      span.classList.toggle("pos", strength > 0 && share > 0);
      span.classList.toggle("neg", strength > 0 && share < 0);
      span.style.setProperty("--s", strength.toFixed(3));
    }

    function reshade() {
      const name = measure();
      for (const radio of radios) {
        radio.disabled = !shown.some(({ values }) => radio.value in values);
        radio.checked = radio.value === name;
        radio.parentElement.title = radio.disabled ? "This iteration’s dump does not have it." : "";
      }
      for (const span of list.getElementsByClassName("tok")) shade(span, name);
      $("legend").hidden = name === undefined;
      $("meaning").textContent = name === undefined
        ? "This iteration’s dump holds texts without figures of their tokens." : MEANINGS[name];
      if (name === undefined) return;
      const top = data.scales[name];
      const unit = name === "advantage" ? "" : " nats";
      $("scale").className = SIGNED.has(name) ? "signed" : "";
      $("scale").setAttribute("aria-label", SIGNED.has(name)
        ? "blue below zero, no shade at zero, orange above" : "no shade to full shade");
      if (top === undefined) {  // every value of it is 0
        $("low").textContent = "0" + unit;
        $("high").textContent = "everywhere";
        return;
      }
      $("low").textContent = SIGNED.has(name) ? signed(-top) + unit + " or less" : "0";
      $("high").textContent = (SIGNED.has(name) ? signed(top) : plain(top)) + unit + " or more";
    }

    // The list

    function iterationWords(index) {
      const mark = data.analysed[index] && data.analysed.includes(false) ? " (analysed)" : "";
      return data.iterations[index].iteration + mark;
    }

    // The button that leads from a prompt to all iterations that have it; null where it is the only one.
    function over(prompt) {
      const count = data.having(prompt).length;
      if (count < 2 || now.prompt !== null) return null;
      const button = element("button", "ex-small", "over " + count + " iterations", { type: "button" });
      listen(button, "click", () => {
        change({ prompt: data.nameOf(prompt) });
        $("back").focus();
      });
      return button;
    }

    function head(rollout, group, again) {
      const words = now.prompt === null ? rollout.prompt : "Iteration " + iterationWords(rollout.of.index);
      const parts = tokensFind.summary(found.filter((each) => group(each) === group(rollout)));
      return tokensRows.heading(words, now.prompt === null, again ? ["continued", ...parts] : parts, over(rollout.prompt));
    }

    function draw() {
      tip.forget();
      const group = now.prompt === null ? (rollout) => rollout.prompt : (rollout) => rollout.of.index;
      const headed = now.groups || now.prompt !== null;
      const from = starts[now.page];
      const some = found.slice(from, starts[now.page + 1]);
      list.replaceChildren(...some.flatMap((rollout, i) => {
        const row = tokensRows.row(rollout, !headed);
        rolloutOfRow.set(row, rollout);
        const before = found[from + i - 1];
        const begins = before === undefined || group(before) !== group(rollout);
        return headed && (begins || i === 0) ? [head(rollout, group, !begins), row] : [row];
      }));
      tokensRows.reach(list);
      const count = all.length;
      const whole = now.prompt === null ? shown[0].count : count;
      const of = count < whole ? count + " (of " + whole + " of the iteration)" : String(count);
      $("status").textContent = found.length === 0 ? "No rollout of " + of + " matches."
        : found.length + " of " + of + (count === 1 ? " rollout" : " rollouts")
          + (found.length > some.length ? "; shown: " + (from + 1) + " to " + (from + some.length) : "");
      $("page").textContent = "page " + (now.page + 1) + " of " + starts.length;
      // not `disabled`: a button that has the focus would lose it
      $("previous").setAttribute("aria-disabled", String(now.page === 0));
      $("next").setAttribute("aria-disabled", String(now.page === starts.length - 1));
      reshade();
    }

    // What there is to choose from depends on what the listed iterations have.
    function controls() {
      const has = { order: true, length: true };
      has.reward = all.some(({ reward }) => !Number.isNaN(reward));
      has.entropy = shown.some(({ values }) => "entropy" in values);
      has.influence = shown.some(({ values }) => "influence" in values);
      for (const option of $("sort").options) option.disabled = !has[option.value];
      for (const option of $("filter").options) option.disabled = option.value !== "all" && !has.reward;
      if (!has[now.sort]) now.sort = "order";
      if (!has.reward) now.kind = "all";
      $("sort").value = now.sort;
      $("filter").value = now.kind;
      $("up").checked = now.up;
      $("up").disabled = now.sort === "order";
      $("group").checked = now.groups;
      $("group").disabled = now.prompt !== null;
      $("iteration").value = String(now.index);
      $("iteration").disabled = now.prompt !== null;
      if ($("search").value !== now.words) $("search").value = now.words;
      $("over").hidden = now.prompt === null;
      $("prompt").textContent = now.prompt === null ? "" : visible(now.prompt);
    }

    function open() {
      const indices = now.prompt === null ? [now.index] : data.having(now.prompt);
      shown = indices.map(data.iteration);
      all = shown.flatMap(({ rollouts }) => rollouts);
      if (now.prompt !== null) all = all.filter(({ prompt }) => prompt === now.prompt);
      controls();
      const by = now.prompt !== null ? null : now.groups ? (rollout) => rollout.prompt : null;
      const settings = { ...now, by };
      // over the iterations their order is the list's, whatever a reader sorts by
      found = now.prompt === null ? tokensFind.find(all, settings)
        : shown.flatMap((of) => tokensFind.find(all.filter((rollout) => rollout.of === of), settings));
      starts = tokensFind.pages(found);
      now.page = Math.min(Math.max(0, Math.trunc(now.page) || 0), starts.length - 1);
      draw();
    }

    function turn(step) {
      const page = now.page + step;
      if (page < 0 || page >= starts.length) return;
      state.set({ page: page === 0 ? null : String(page + 1) });
      now.page = page;
      draw();
      $("status").parentElement.scrollIntoView({ block: "nearest" });
      if (list.getBoundingClientRect().top < 0) list.scrollIntoView({ block: "start" });
    }

    // The controls

    $("iteration").replaceChildren(...data.iterations.map((_, i) => new Option(iterationWords(i), String(i))));
    listen($("iteration"), "change", () => {
      const index = Number($("iteration").value);
      change({ iteration: index === first ? null : String(data.iterations[index].iteration) });
    });
    listen($("shade"), "change", (event) => {
      state.set({ shade: event.target.value === "entropy" ? null : event.target.value });
      now.shade = event.target.value;
      reshade();
    });
    listen($("filter"), "change", () => change({ only: $("filter").value === "all" ? null : $("filter").value }));
    listen($("sort"), "change", () => change({ sort: $("sort").value === "order" ? null : $("sort").value }));
    listen($("up"), "change", () => change({ up: $("up").checked ? "1" : null }));
    listen($("group"), "change", () => change({ groups: $("group").checked === several ? null : $("group").checked ? "1" : "0" }));
    listen($("search"), "input", () => change({ search: $("search").value === "" ? null : $("search").value }));
    listen($("back"), "click", () => {
      change({ prompt: null });
      $("iteration").focus();
    });
    listen($("previous"), "click", () => turn(-1));
    listen($("next"), "click", () => turn(1));
    // a browser may keep the words of an earlier visit
    $("search").value = "";
    open();
    root.querySelector("#token-static")?.remove();
    home.hidden = false;
  }

  return { mount };
})();
