// The token view of a run's page: rollouts as text, each token shaded by one of its figures.
//
// The page carries the rollouts as JSON (report/tokens writes it). Prompts and completions are
// model output, hostile until proven otherwise: they reach the page as text nodes only. The page's
// policy lets this script run by its hash, and nothing else.
"use strict";
(() => {
  const ROWS = 20;      // rollouts of one page of the list ...
  const TOKENS = 6000;  // ... or fewer where they hold more tokens than this
  const MEANINGS = {
    entropy: "Entropy of the distribution that the token was drawn from.",
    change: "Entropy at the token’s place after the iteration’s updates, minus before.",
    influence: "What the token’s gradient does to the mean entropy of the batch, to first order.",
    advantage: "The advantage that the token was trained with, after the methods’ edits.",
  };
  const OBSERVED = "Said by the environment: read by the policy, not trained on.";
  const SIGNED = new Set(["change", "influence", "advantage"]);
  const FIGURES = [
    ["probability", (t) => plain(Math.exp(t.logp))],
    ["log-prob", (t) => plain(t.logp)],
    ["sampler’s log-prob", (t) => plain(t.sampler_logp)],
    ["entropy", (t) => plain(t.entropy)],
    ["change of entropy", (t) => signed(t.change)],
    ["influence", (t) => signed(t.influence)],
    ["advantage", (t) => signed(t.advantage)],
  ];

  const $ = (name) => document.getElementById("tv-" + name);
  const data = JSON.parse(document.getElementById("token-data").textContent);
  const list = $("list");
  const tip = $("tip");
  const radios = [...$("shade").querySelectorAll("input")];
  const analysed = data.iterations.map(({ values }) => "change" in values || "influence" in values);
  // the last analysed iteration, which has most to show; without one the last
  const begin = analysed.lastIndexOf(true);
  const state = {
    iteration: begin < 0 ? data.iterations.length - 1 : begin, wanted: "entropy", page: 0,
  };
  let iteration;       // the one shown, decoded
  let found = [];      // its rollouts that match, sorted
  let starts = [0];    // where in `found` each page begins
  let hovered = null;  // the token under the pointer
  let focused = null;  // the token that has the focus

  // Numbers: three bytes each, lowest first, four characters of base64 (encoding.py: pack).
  function unpack(text) {
    const bytes = atob(text);
    const words = new Uint32Array(bytes.length / 3);
    for (let i = 0, at = 0; i < words.length; i++, at += 3) {
      words[i] = bytes.charCodeAt(at) | (bytes.charCodeAt(at + 1) << 8)
        | (bytes.charCodeAt(at + 2) << 16);
    }
    return words;
  }

  // The upper three bytes of a float32.
  function unpackFloats(text) {
    return new Float32Array(unpack(text).map((word) => word << 8).buffer);
  }

  const decoded = new Map();

  function decode(index) {
    if (decoded.has(index)) return decoded.get(index);
    const source = data.iterations[index];
    const tokens = unpack(source.tokens);
    const values = {};
    for (const [name, text] of Object.entries(source.values)) values[name] = unpackFloats(text);
    const sampled = source.sampled ? unpack(source.sampled) : null;
    let start = 0;
    const rollouts = source.length.map((length, k) => {
      const shown = Math.min(length, data.longest);
      const rollout = {
        place: k,
        number: k * source.step + 1,
        prompt: source.prompts[source.prompt[k]],
        reward: source.reward[k] ?? NaN,
        finished: Boolean(source.finished[k]),
        trained: Boolean(source.trained[k]),
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
    const result = { ...source, ids: unpack(source.ids), tokens, sampled, values, rollouts };
    decoded.set(index, result);
    return result;
  }

  // Text

  // Controls as the signs that stand for them; what would reorder or hide text by its number.
  function visible(text) {
    return text.replace(/(?![\t\n])[\p{Cc}\p{Cs}\p{Bidi_Control}\u2028\u2029\ufeff]/gu, (c) => {
      const code = c.codePointAt(0);
      if (code < 32) return String.fromCharCode(0x2400 + code);
      return code === 127 ? "\u2421" : "[U+" + code.toString(16).toUpperCase().padStart(4, "0") + "]";
    });
  }

  function plain(x) {
    if (x === undefined || Number.isNaN(x)) return "—";
    if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
    const size = Math.abs(x);
    const text = x === 0 ? "0" : size < 1e-3 || size >= 1e5 ? x.toExponential(2)
      : size < 0.1 ? x.toPrecision(3) : x.toFixed(3);
    return text.replaceAll("-", "−");
  }

  function signed(x) {
    return x > 0 ? "+" + plain(x) : plain(x);
  }

  function round(x) {
    return Number.isNaN(x) ? "—" : String(Number(x.toPrecision(3))).replaceAll("-", "−");
  }

  function count(n, word) {
    return n + " " + word + (n === 1 ? "" : "s");
  }

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // Shades

  function measure() {
    const there = radios.map((radio) => radio.value).filter((name) => name in iteration.values);
    return there.includes(state.wanted) ? state.wanted : there[0];
  }

  function shade(span, name) {
    const value = name === undefined ? NaN : iteration.values[name][span.dataset.at];
    const share = value / data.scales[name];
    const strength = Number.isNaN(share) ? 0 : Math.min(1, Math.abs(share));
    span.classList.toggle("pos", strength > 0 && share > 0);
    span.classList.toggle("neg", strength > 0 && share < 0);
    span.style.setProperty("--s", strength.toFixed(3));
  }

  function reshade() {
    const name = measure();
    for (const radio of radios) {
      radio.disabled = !(radio.value in iteration.values);
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

  function figure(rollout, key) {
    if (key === "order") return rollout.place;
    if (key === "length") return rollout.length || rollout.text.length;
    return { reward: rollout.reward, entropy: rollout.meanEntropy, influence: rollout.influence }[key];
  }

  function find() {
    const words = $("search").value.toLowerCase();
    const kind = $("filter").value;
    found = iteration.rollouts.filter((r) => r.key.includes(words)
      && (kind === "all" || (kind === "right" ? r.reward >= 1 : r.reward < 1)));
    const key = $("sort").value;
    // the batch's own order begins at its beginning, all else with the largest
    const direction = key === "order" || $("up").checked ? 1 : -1;
    found.sort((a, b) => {
      const [x, y] = [figure(a, key), figure(b, key)];
      if (Number.isNaN(x) || Number.isNaN(y)) {
        return Number.isNaN(x) - Number.isNaN(y) || a.place - b.place;  // unknown ones last
      }
      return direction * (x - y) || a.place - b.place;
    });
    starts = [0];
    let tokens = 0;
    found.forEach((rollout, i) => {
      const first = starts[starts.length - 1];
      if (i > first && (i - first >= ROWS || tokens + rollout.shown > TOKENS)) {
        starts.push(i);
        tokens = 0;
      }
      tokens += rollout.shown;
    });
  }

  // Whether an environment said the token.
  function seen(at) {
    return iteration.sampled !== null && iteration.sampled[at] === 0;
  }

  function completion(rollout) {
    const box = element("div", "text tokens");
    box.setAttribute("role", "listbox");
    box.setAttribute("aria-orientation", "horizontal");
    box.setAttribute("aria-label", "Completion of rollout " + rollout.number + ", "
      + count(rollout.length, "token"));
    for (let i = 0; i < rollout.shown; i++) {
      const at = rollout.start + i;
      const token = iteration.tokens[at];
      const text = visible(iteration.pieces[token]).replaceAll("\n", "↵\n");
      const span = element("span", "tok", text || "[" + iteration.ids[token] + "]");
      if (rollout.finished && i === rollout.length - 1) span.classList.add("end");
      if (seen(at)) span.classList.add("observed");
      span.dataset.at = at;
      span.dataset.i = i;
      span.tabIndex = i === 0 ? 0 : -1;
      span.setAttribute("role", "option");
      span.setAttribute("aria-selected", "false");
      box.append(span);
    }
    return box;
  }

  function row(rollout) {
    const item = element("li", "tv-row");
    item.dataset.number = rollout.number;

    const prompt = element("div", "tv-prompt");
    prompt.append(element("div", "text", visible(rollout.prompt)));

    const answer = element("div", "tv-completion");
    if (rollout.shown === 0) {
      answer.append(element("div", "text", visible(rollout.text)));
    } else {
      answer.append(completion(rollout));
      if (rollout.length > rollout.shown) {
        answer.append(element("p", "soft",
          count(rollout.length - rollout.shown, "more token") + ", not on this page"));
      }
      if (rollout.plain !== null) {
        const details = element("details");
        details.append(element("summary", "", "as plain text"),
          element("div", "text", visible(rollout.plain)));
        answer.append(details);
      }
    }

    const facts = element("ul", "tv-facts");
    const fact = (className, text) => facts.append(element("li", className, text));
    fact("", "rollout " + rollout.number);
    if (Number.isNaN(rollout.reward)) {
      fact("verdict", "reward —");
    } else {
      const kind = rollout.reward >= 1 ? "right" : "wrong";
      fact("verdict " + kind, "reward " + round(rollout.reward) + " (" + kind + ")");
    }
    if (rollout.length > 0) fact("", count(rollout.length - rollout.observed, "token"));
    if (rollout.observed > 0) fact("", count(rollout.observed, "token") + " of its environment");
    if ("entropy" in iteration.values) fact("", "mean entropy " + plain(rollout.meanEntropy));
    if ("influence" in iteration.values) fact("", "sum of |influence| " + plain(rollout.influence));
    if (rollout.shown > 0 && !rollout.finished) {
      fact("", iteration.sampled ? "not over: its turns or its context ran out" : "cut off at the length limit");
    }
    if (!rollout.trained) fact("", "not trained on: its group has no signal");

    item.append(facts, prompt, answer);
    return item;
  }

  function draw() {
    hovered = focused = null;
    const first = starts[state.page];
    const page = found.slice(first, starts[state.page + 1]);
    list.replaceChildren(...page.map(row));
    const all = iteration.rollouts.length;
    const of = all < iteration.count
      ? all + " (of " + iteration.count + " of the iteration)" : String(all);
    $("status").textContent = found.length === 0 ? "No rollout of " + of + " matches."
      : found.length + " of " + of + (all === 1 ? " rollout" : " rollouts")
        + (found.length > page.length ? "; shown: " + (first + 1) + " to " + (first + page.length) : "");
    $("page").textContent = "page " + (state.page + 1) + " of " + starts.length;
    // not `disabled`: a button that has the focus would lose it
    $("previous").setAttribute("aria-disabled", String(state.page === 0));
    $("next").setAttribute("aria-disabled", String(state.page === starts.length - 1));
    reshade();
    explain();
  }

  function refresh() {
    find();
    state.page = 0;
    draw();
  }

  function open(index) {
    state.iteration = index;
    iteration = decode(index);
    const has = { order: true, length: true };
    has.reward = iteration.rollouts.some((r) => !Number.isNaN(r.reward));
    has.entropy = "entropy" in iteration.values;
    has.influence = "influence" in iteration.values;
    for (const option of $("sort").options) option.disabled = !has[option.value];
    if (!has[$("sort").value]) $("sort").value = "order";
    $("up").disabled = $("sort").value === "order";
    for (const option of $("filter").options) {
      option.disabled = option.value !== "all" && !has.reward;
    }
    if (!has.reward) $("filter").value = "all";
    refresh();
  }

  function turn(step) {
    const page = state.page + step;
    if (page < 0 || page >= starts.length) return;
    state.page = page;
    draw();
    $("status").parentElement.scrollIntoView({ block: "nearest" });
    if (list.getBoundingClientRect().top < 0) list.scrollIntoView({ block: "start" });
  }

  // A token's figures

  function explain() {
    const span = hovered ?? focused;
    tip.hidden = span === null;
    if (span === null) return;
    const at = Number(span.dataset.at);
    const token = iteration.tokens[at];
    const figures = {};
    for (const [name, values] of Object.entries(iteration.values)) figures[name] = values[at];
    const text = visible(iteration.pieces[token]).replaceAll("\n", "↵").replaceAll(" ", "␣");
    const heading = element("p", "tv-token", text);
    const place = element("p", "soft", "token " + (Number(span.dataset.i) + 1) + " of "
      + rolloutOf(span).length + ", id " + iteration.ids[token]);
    const table = element("dl");
    for (const [name, format] of seen(at) ? [] : FIGURES) {
      const pair = element("div");
      pair.append(element("dt", "", name), element("dd", "", format(figures)));
      table.append(pair);
    }
    tip.replaceChildren(heading, place, seen(at) ? element("p", "soft", OBSERVED) : table);
    put(span);
  }

  function rolloutOf(span) {
    const number = Number(span.closest(".tv-row").dataset.number);
    return iteration.rollouts[(number - 1) / iteration.step];
  }

  // Below the token, or above where there is no room.
  function put(span) {
    const around = span.getClientRects()[0];
    const own = tip.getBoundingClientRect();
    const below = around.bottom + 6;
    const fits = below + own.height <= window.innerHeight;
    const left = Math.min(around.left, document.documentElement.clientWidth - own.width - 8);
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = Math.max(4, fits ? below : around.top - own.height - 6) + "px";
  }

  // The token nearest above (-1) or below (1) on the next line of text.
  function vertical(span, step) {
    const from = span.getClientRects()[0];
    let best = null;
    let line = null;
    for (let other = step > 0 ? span.nextElementSibling : span.previousElementSibling;
      other !== null; other = step > 0 ? other.nextElementSibling : other.previousElementSibling) {
      const rect = other.getClientRects()[0];
      if (Math.abs(rect.top - from.top) < from.height / 2) continue;
      if (line !== null && Math.abs(rect.top - line) >= from.height / 2) break;
      line = rect.top;
      const distance = Math.abs(rect.left - from.left);
      if (best === null || distance < best.distance) best = { other, distance };
    }
    return best?.other ?? null;
  }

  const MOVES = {
    ArrowRight: (span) => span.nextElementSibling,
    ArrowLeft: (span) => span.previousElementSibling,
    ArrowDown: (span) => vertical(span, 1),
    ArrowUp: (span) => vertical(span, -1),
    Home: (span) => span.parentElement.firstElementChild,
    End: (span) => span.parentElement.lastElementChild,
  };

  const tokenOf = (event) => event.target.closest?.(".tok") ?? null;

  list.addEventListener("keydown", (event) => {
    const span = tokenOf(event);
    if (span === null || event.ctrlKey || event.altKey || event.metaKey) return;
    if (!Object.hasOwn(MOVES, event.key)) return;
    event.preventDefault();
    MOVES[event.key](span)?.focus();
  });
  list.addEventListener("focusin", (event) => {
    focused = tokenOf(event);
    if (focused !== null) {
      for (const other of focused.parentElement.querySelectorAll('[tabindex="0"]')) {
        other.tabIndex = -1;
      }
      focused.tabIndex = 0;
      focused.setAttribute("aria-selected", "true");
      focused.setAttribute("aria-describedby", "tv-tip");
      hovered = null;
    }
    explain();
  });
  list.addEventListener("focusout", (event) => {
    const span = tokenOf(event);
    span?.setAttribute("aria-selected", "false");
    span?.removeAttribute("aria-describedby");
    focused = null;
    explain();
  });
  list.addEventListener("pointerover", (event) => {
    const span = tokenOf(event);
    if (span === hovered) return;
    hovered = span;
    explain();
  });
  list.addEventListener("pointerleave", () => {
    hovered = null;
    explain();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    hovered = null;
    tip.hidden = true;
  });
  // capture: completions scroll as well, and a scroll does not bubble
  document.addEventListener("scroll", () => {
    const span = hovered ?? focused;
    if (span !== null && !tip.hidden) put(span);
  }, { capture: true, passive: true });

  // The controls

  data.iterations.forEach(({ iteration: number }, index) => {
    const mark = analysed[index] && analysed.includes(false) ? " (analysed)" : "";
    $("iteration").append(new Option(number + mark, String(index)));
  });
  $("iteration").value = String(state.iteration);
  $("iteration").addEventListener("change", () => open(Number($("iteration").value)));
  $("shade").addEventListener("change", (event) => {
    state.wanted = event.target.value;
    reshade();
  });
  $("sort").addEventListener("change", () => {
    $("up").disabled = $("sort").value === "order";
    refresh();
  });
  for (const name of ["filter", "up"]) $(name).addEventListener("change", refresh);
  $("search").addEventListener("input", refresh);
  $("previous").addEventListener("click", () => turn(-1));
  $("next").addEventListener("click", () => turn(1));

  // a browser may keep the settings of an earlier visit: begin with the page's own
  $("search").value = "";
  $("filter").value = "all";
  $("sort").value = "order";
  $("up").checked = false;
  open(state.iteration);
  document.getElementById("token-static").remove();
  document.getElementById("token-view").hidden = false;
})();
